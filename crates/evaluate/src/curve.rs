//! The cost of a wrong calibration: PSNR of a method as a function of one camera parameter that it is given.

use crate::Assumed;
use serde::Serialize;
use std::fmt::Write;

/// One method with several values of one camera parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    pub method: String,
    /// A key of [`Assumed`].
    pub key: String,
    /// The values given, rising, and the mean PSNR in dB.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Curves of the points (method, key, value, PSNR), in the order in which methods and keys come.
    pub fn of(points: &[(String, String, f64, f64)]) -> Vec<Curve> {
        let mut out: Vec<Curve> = Vec::new();
        for (method, key, value, psnr) in points {
            match out.iter_mut().find(|c| c.method == *method && c.key == *key) {
                Some(curve) => curve.points.push((*value, *psnr)),
                None => out.push(Curve {
                    method: method.clone(),
                    key: key.clone(),
                    points: vec![(*value, *psnr)],
                }),
            }
        }
        out.iter_mut().for_each(|c| c.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        out
    }

    /// The loss with a given value, in dB, interpolated linearly between the points; `None` outside of them, or where
    /// the truth is not among them.
    pub fn loss(&self, value: f64) -> Option<f64> {
        Some(self.at(Assumed::truth(&self.key))? - self.at(value)?)
    }

    fn at(&self, value: f64) -> Option<f64> {
        let after = self.points.iter().position(|p| p.0 >= value - 1e-9)?;
        let (x1, y1) = self.points[after];
        if (x1 - value).abs() < 1e-9 {
            return Some(y1);
        }
        let (x0, y0) = *self.points.get(after.checked_sub(1)?)?;
        Some(y0 + (y1 - y0) * (value - x0) / (x1 - x0))
    }

    /// Whether PSNR falls from the truth to either side, but for a rise of up to `by` dB from one point to the next.
    pub fn falls(&self, by: f64) -> bool {
        let truth = Assumed::truth(&self.key);
        let steps = self.points.windows(2);
        steps.into_iter().all(|w| match w[1].0 <= truth + 1e-9 {
            true => w[0].1 <= w[1].1 + by,
            false if w[0].0 >= truth - 1e-9 => w[1].1 <= w[0].1 + by,
            // The truth lies between the two.
            false => true,
        })
    }
}

/// A rise in dB below which a curve counts as flat.
const LEVEL: f64 = 0.05;

/// The curves as a part of a report.
pub fn markdown(curves: &[Curve]) -> String {
    let mut out = String::new();
    let mut keys: Vec<&str> = curves.iter().map(|c| c.key.as_str()).collect();
    keys.dedup();
    for key in keys {
        let own: Vec<&Curve> = curves.iter().filter(|c| c.key == key).collect();
        let values: Vec<String> = own[0].points.iter().map(|p| p.0.to_string()).collect();
        let unit = if key == "shift" { "pixels off" } else { "times the truth" };
        let _ = write!(
            out,
            "\n## What a wrong {key} costs\n\nLoss in dB compared with the true value, by the value that methods were given ({unit}).\n\n| method | {} | falls to both sides |\n|{}\n",
            values.join(" | "),
            "---|".repeat(values.len() + 2)
        );
        for curve in own {
            let cells: Vec<String> = curve
                .points
                .iter()
                .map(|p| curve.loss(p.0).map_or(format!("({:.2})", p.1), |l| format!("{l:.2}")))
                .collect();
            let falls = if curve.falls(LEVEL) { "yes" } else { "no" };
            let _ = writeln!(out, "| {} | {} | {falls} |", curve.method, cells.join(" | "));
        }
    }
    out
}

/// The curves for spreadsheets.
pub fn csv(curves: &[Curve]) -> String {
    let mut out = String::from("method,key,told,psnr,loss\n");
    for curve in curves {
        for &(value, psnr) in &curve.points {
            let loss = curve.loss(value).map_or(String::new(), |l| l.to_string());
            let _ = writeln!(out, "{},{},{value},{psnr},{loss}", curve.method, curve.key);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_against_the_truth_and_straight_between_points() {
        let point = |v: f64, p: f64| ("m".to_string(), "psf".to_string(), v, p);
        let curves = Curve::of(&[point(1.0, 30.0), point(1.2, 28.0), point(0.8, 29.0)]);
        let [curve] = &curves[..] else { panic!("one curve") };
        assert_eq!(curve.points, [(0.8, 29.0), (1.0, 30.0), (1.2, 28.0)]);
        assert_eq!(curve.loss(1.0), Some(0.0));
        assert!(
            (curve.loss(1.1).unwrap() - 1.0).abs() < 1e-9 && (curve.loss(0.9).unwrap() - 0.5).abs() < 1e-9
        );
        assert_eq!((curve.loss(0.7), curve.loss(1.3)), (None, None));
        assert!(curve.falls(0.0));
        let other = Curve { points: vec![(0.8, 30.5), (1.0, 30.0), (1.2, 28.0)], ..curve.clone() };
        assert!(!other.falls(0.05) && other.falls(0.5));
        let text = markdown(&curves);
        assert!(text.contains("| m | 1.00 | 0.00 | 2.00 | yes |"), "{text}");
        assert_eq!(csv(&curves).lines().nth(1), Some("m,psf,0.8,29,1"));
        let shift = Curve { key: "shift".into(), points: vec![(0.0, 30.0), (0.5, 29.0)], ..curve.clone() };
        assert_eq!(shift.loss(0.5), Some(1.0));
    }
}
