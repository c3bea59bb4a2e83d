//! Evaluations in words: what was evaluated, which size to use, what methods invent and miss, and example images.

use super::cases::Cases;
use super::settings::EvaluateSettings;
use crate::error::Result;
use clearshot_evaluate::files::{Pairs, Terms};
use clearshot_evaluate::report::{Figure, Illustration};
use clearshot_evaluate::{BEST_GAUSSIAN, Bench, Method, budget, picture, rounded, stress};
use clearshot_graph::plan::human;

impl EvaluateSettings {
    pub(super) fn about(&self, runs: &[(String, Cases)], methods: &[Box<dyn Method>]) -> Vec<String> {
        let mut out = Vec::new();
        match runs.first() {
            Some((_, Cases::Scenes(b))) => {
                let sizes: Vec<String> = self.sizes.iter().map(|s| format!("{s} x {s}")).collect();
                let psf = b.psf_sigma.map(|s| format!(", blurred by {s} pixels")).unwrap_or_default();
                out.push(format!(
                    "generated scenes of {} pixels{psf}, {} a cell, seed {}",
                    sizes.join(", "),
                    b.count,
                    b.seed
                ));
                out.push("background and read noise as usual for the peak: 1 and 1 electrons up to 10, 2 and 1.5 up to 50, 5 and 2 up to 500, 20 and 2 above".into());
                out.push("PSNR with range 1 in units of the peak, after clipping to [0, 1.5]".into());
            }
            Some((_, Cases::Files(pairs))) => out.extend(about_files(pairs)),
            None => {}
        }
        for sweep in &self.sweep {
            out.push(format!("every value of {sweep}"));
        }
        if methods.iter().any(|m| m.is_oracle()) {
            out.push(format!("{BEST_GAUSSIAN} is an oracle: the Gaussian blur whose width was chosen by the truth of each image"));
        }
        out
    }

    pub(super) fn advice(&self, trials: &[budget::Trial]) -> String {
        let limits = self.limits;
        if self.sizes.len() < 2 && limits == budget::Limits::default() {
            return String::new();
        }
        let mut out = String::from("\n## Which size to use\n\n");
        if trials.is_empty() {
            return out
                + "Several sizes and a folder without records are needed, so that times can be measured.\n";
        }
        out += "| method | size | PSNR | s per megapixel | peak memory | |\n|---|---|---|---|---|---|\n";
        for t in trials {
            let memory = t.bytes.map_or("-".into(), human);
            let broken = budget::broken(t, &limits).join("; ");
            out += &format!(
                "| {} | {} | {:.2} | {:.2} | {memory} | {broken} |\n",
                t.method, t.size, t.psnr, t.seconds
            );
        }
        out += &match budget::recommend(trials, &limits) {
            Some(t) => format!(
                "\nUse {} at {} pixels: {:.2} dB, the best within the limits.\n",
                t.method, t.size, t.psnr
            ),
            None => "\nNothing is within all limits; the last column says which limits are exceeded.\n"
                .to_string(),
        };
        out
    }

    pub(super) fn stressed(&self, methods: &[Box<dyn Method>]) -> Result<String> {
        let bench = Bench {
            count: self.count.max(2),
            size: self.sizes.first().copied().unwrap_or(128),
            seed: self.seed,
            ..Bench::default()
        };
        let mut out = String::from(
            "\n## Empty images\n\nMean signal in units of the peak with its 95 % interval, and the brightest pixel in standard deviations of the noise.\n\n| method | peak | mean signal | brightest |\n|---|---|---|---|\n",
        );
        for &peak in &self.peaks {
            for m in methods.iter().filter(|m| m.name() != "rl") {
                let b = stress::blank_field(m.as_ref(), peak, &bench)?;
                out += &format!(
                    "| {} | {peak} | {:+.4} ({:+.4} to {:+.4}) | {:.2} |\n",
                    b.method, b.mean, b.low, b.high, b.brightest
                );
            }
        }
        out += "\n## Faint lines\n\nThe share of a line's brightness that is recovered, and its contrast in standard deviations of its surroundings (visible from about 3).\n\n| method | peak | brightness of the line | recovered | contrast |\n|---|---|---|---|---|\n";
        for &peak in &self.peaks {
            for m in methods.iter().filter(|m| m.name() != "rl") {
                for amplitude in [0.05, 0.1, 0.2, 0.4] {
                    let l = stress::faint_line(m.as_ref(), peak, amplitude, &bench)?;
                    out += &format!(
                        "| {} | {peak} | {amplitude} | {:.2} | {:.1} |\n",
                        l.method, l.recovered, l.contrast
                    );
                }
            }
        }
        Ok(out)
    }
}

/// The first image of each scene at its middle peak, restored by every method.
pub fn illustrations(methods: &[Box<dyn Method>], runs: &[(String, Cases)]) -> Result<Vec<Illustration>> {
    let Some((_, cases)) = runs.first() else { return Ok(Vec::new()) };
    let numbers: Vec<usize> = match cases {
        Cases::Scenes(b) => {
            let a_scene = b.peaks.len() * b.count as usize;
            (0..b.scenes.len()).map(|s| s * a_scene + b.peaks.len() / 2 * b.count as usize).collect()
        }
        Cases::Files(pairs) => (0..pairs.len().min(4)).collect(),
    };
    let mut out = Vec::new();
    for number in numbers {
        let case = cases.case(number)?;
        let caption = format!("{}, peak {} electrons", case.scene, rounded(case.peak));
        out.push(Illustration { caption, figure: Figure::Png(picture(methods, &case)?) });
    }
    Ok(out)
}

/// How files were looked at and scored, for the report.
fn about_files(pairs: &Pairs) -> Vec<String> {
    let Terms { known, exposure, range, fit } = *pairs.terms();
    let numbers = [("gain", known.gain), ("offset", known.offset), ("read noise", known.read_noise)];
    let given: Vec<String> =
        numbers.iter().filter_map(|(name, v)| v.map(|v| format!("{name} {v} as given"))).collect();
    let camera = match given.len() {
        3 => String::new(),
        0 => "camera estimated from each noisy file".into(),
        _ => "the rest of the camera estimated from each noisy file".into(),
    };
    let camera = given.into_iter().chain(Some(camera).filter(|c| !c.is_empty())).collect::<Vec<_>>();
    let light =
        if exposure == 1.0 { String::new() } else { format!(", {exposure} times the clean files' exposure") };
    let scale = match range {
        Some(r) => format!("the range {r}"),
        None => "the range 255 for clean files of 8 bits, otherwise the maximum minus the minimum of each clean image".into(),
    };
    let fitted = match fit {
        true => "gain and offset of each result fitted to the clean image by least squares before scoring",
        false => "results scored as they are, without a fit of gain and offset",
    };
    vec![
        format!("{} planes of files; {}{light}", pairs.len(), camera.join(", ")),
        format!(
            "PSNR and SSIM (uniform window of 7) with {scale}, as scikit-image; nothing clipped or rounded"
        ),
        fitted.into(),
    ]
}
