//! The Gaussian blur with the best width according to the truth: an oracle, which every useful method should exceed.

use crate::case::Case;
use crate::method::{Method, Restored, View};
use crate::score;
use clearshot_restore::classical::{self, Noise, gaussian::Gaussian};

/// As it is called on the command line and in tables.
pub const NAME: &str = "best-gaussian";

/// See the module.
pub struct BestGaussian;

/// The widths in pixels that are tried first: from next to nothing, each a quarter wider than the one before.
const FIRST: f64 = 0.3;
const WIDER: f64 = 1.25;
const TRIED: i32 = 16;
/// How often the width between the best one's neighbours is halved in on, by the golden section.
const REFINED: usize = 10;

impl Method for BestGaussian {
    fn name(&self) -> &str {
        NAME
    }

    fn is_oracle(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<&(dyn Method + Sync)> {
        Some(self)
    }

    fn restore(&self, _: &View) -> Result<Restored, String> {
        Err(format!("{NAME} chooses its width by the truth, and there is none"))
    }

    fn restore_case(&self, case: &Case) -> Result<Restored, String> {
        let blurred = |sigma: f64| {
            let method = classical::Method::Gaussian(Gaussian { sigma: sigma as f32 });
            method.run(&case.view.electrons, &case.view.shape, Noise::white(0.0)).map_err(|e| e.to_string())
        };
        let psnr = |sigma: f64| score::psnr(case, &blurred(sigma)?).map_err(|e| e.to_string());
        let width = |i: i32| if i < 0 { 0.0 } else { FIRST * WIDER.powi(i) };
        let mut best = (-1, psnr(0.0)?);
        for i in 0..TRIED {
            let reached = psnr(width(i))?;
            if reached > best.1 {
                best = (i, reached);
            }
        }
        let sigma = golden(width(best.0 - 1), width(best.0 + 1), &psnr)?;
        let sigma = if psnr(sigma)? > best.1 { sigma } else { width(best.0) };
        Ok(Restored { mean: blurred(sigma)?, std: None, reach: None })
    }
}

/// Where between two numbers a function with one maximum has it, by the golden section.
fn golden(mut low: f64, mut high: f64, value: &dyn Fn(f64) -> Result<f64, String>) -> Result<f64, String> {
    let part = 0.5 * (5f64.sqrt() - 1.0);
    let inner = |low: f64, high: f64| [high - part * (high - low), low + part * (high - low)];
    let [mut a, mut b] = inner(low, high);
    let (mut at_a, mut at_b) = (value(a)?, value(b)?);
    for _ in 0..REFINED {
        if at_a > at_b {
            (high, b, at_b) = (b, a, at_a);
            a = inner(low, high)[0];
            at_a = value(a)?;
        } else {
            (low, a, at_a) = (a, b, at_b);
            b = inner(low, high)[1];
            at_b = value(b)?;
        }
    }
    Ok(0.5 * (low + high))
}

#[cfg(test)]
mod tests {
    use super::golden;

    #[test]
    fn the_top_of_a_parabola_is_found() {
        let top = golden(0.0, 2.0, &|x| Ok(-(x - 0.7) * (x - 0.7))).unwrap();
        assert!((top - 0.7).abs() < 0.02, "{top}");
    }
}
