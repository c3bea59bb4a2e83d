//! What `eval` and `compare` share: which methods on which images, the records they make, and the reports of them.

use crate::camera::CameraArgs;
use crate::electrons;
use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_evaluate::curve::{self, Curve};
use clearshot_evaluate::files::{Grouping, Pairs, Terms};
use clearshot_evaluate::report::{self, Figure, Illustration};
use clearshot_evaluate::{
    AUTO, BEST_GAUSSIAN, Bench, Case, DEFAULT, EvaluateError, Learned, Method, Progress, Record, Store,
    Summary, Told, budget, method, picture, rounded, run, stress,
};
use clearshot_physics::calibration::blind::Known;
use clearshot_restore::learned::Camera;
use clearshot_runtime::{DeviceName, peak_bytes};
use clearshot_scenes::SCENES;
use clearshot_tensor::store::write_whole;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct Settings {
    /// Choose kinds of scenes, separated by commas; `benchmark` for the five of the published tables, `all` for every kind that
    /// `clearshot synth` generates. Default: benchmark.
    #[arg(long, default_value = "benchmark", conflicts_with = "truth")]
    scenes: String,
    /// Mean electrons of the brightest value, separated by commas.
    #[arg(long, default_value = "5,20,100", value_delimiter = ',', conflicts_with = "truth")]
    peaks: Vec<f64>,
    /// Images of each kind at each peak.
    #[arg(long, default_value_t = 8, conflicts_with = "truth")]
    count: u32,
    /// Pixels along each side of a scene; several, separated by commas, are tried one after the other.
    #[arg(long, default_value = "128", value_delimiter = ',', conflicts_with = "truth")]
    size: Vec<usize>,
    /// Of the scenes, their noise and the models' samples.
    #[arg(long, default_value_t = Bench::default().seed)]
    seed: u64,
    /// Blur the scenes by a Gaussian of this standard deviation in pixels.
    #[arg(long, conflicts_with = "truth")]
    psf_sigma: Option<f64>,
    /// Clean images instead of scenes: a file, a folder or a glob pattern.
    #[arg(long, requires = "noisy")]
    truth: Option<String>,
    /// The noisy ones that go with them, paired by name.
    #[arg(long, requires = "truth")]
    noisy: Option<String>,
    #[command(flatten)]
    camera: CameraArgs,
    /// Electrons per count of those files. Default: estimated from each noisy file, as `restore` does.
    #[arg(long, value_parser = electrons::gain::<f64>, allow_negative_numbers = true, requires = "truth")]
    gain: Option<f64>,
    /// Counts without light. Default: estimated from each noisy file.
    #[arg(long, value_parser = electrons::counts::<f64>, allow_negative_numbers = true, requires = "truth")]
    offset: Option<f64>,
    /// The standard deviation of the read noise in electrons. Default: estimated from each noisy file.
    #[arg(long, value_parser = electrons::amount::<f64>, allow_negative_numbers = true, requires = "truth")]
    read_noise: Option<f64>,
    /// Fit gain and offset of each result to its clean file by least squares before scoring, for pairs whose scales differ.
    /// Default: nothing is fitted.
    #[arg(long, requires = "truth")]
    fit: bool,
    /// Compute PSNR and SSIM of files with this range of values. Default: 255 for clean files of 8 bits, otherwise the
    /// greatest less the least value of each clean image.
    #[arg(long, value_name = "R", value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, requires = "truth")]
    range: Option<f64>,
    /// Group files into the rows of the table by a regular expression on their names without the ending: by what its first
    /// group matches. `all` makes one group. Default: the name up to a last _ or - that only digits follow.
    #[arg(long, value_name = "PATTERN", requires = "truth")]
    group: Option<String>,
    /// How many times the light of the clean files the noisy ones have (0.1: a tenth of the exposure). The clean ones are scored as
    /// they would be at that exposure, so that `raw` is the short exposure scaled up and nothing else.
    #[arg(long, default_value_t = 1.0, value_parser = electrons::ratio::<f64>, allow_negative_numbers = true, requires = "truth")]
    exposure: f64,
    /// Try several values: KEY=A,B,... The keys samples, steps and sampler are the models'; gain, background, read_noise and
    /// psf (its width) tell methods another camera than the true one, by factors, and shift moves the PSF by pixels. Several
    /// keys make every combination; one alone makes a curve, with the truth (1, of a shift 0) among its values.
    #[arg(long, value_name = "KEY=VALUES")]
    sweep: Vec<String>,
    /// Samples of the posterior that a model's intervals come from; 0 for none.
    #[arg(long, default_value_t = 0)]
    samples: usize,
    /// The sampler of models.
    #[arg(long, default_value = "dpmpp-2m")]
    sampler: String,
    /// Its steps.
    #[arg(long, default_value_t = 25)]
    steps: usize,
    /// What models run on: cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Threads of the CPU; by default as many as the machine runs at once.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Also test what methods invent in empty pictures and what they miss of faint lines.
    #[arg(long, conflicts_with = "truth")]
    stress: bool,
    /// Recommend a size that takes no more memory than this.
    #[arg(long, value_parser = clearshot_runtime::bytes::parse, conflicts_with = "truth")]
    max_memory: Option<usize>,
    /// Recommend a size that takes no more seconds a megapixel than this.
    #[arg(long, conflicts_with = "truth")]
    max_seconds: Option<f64>,
    /// Recommend a size that reaches at least this many dB.
    #[arg(long, conflicts_with = "truth")]
    min_psnr: Option<f64>,
    /// The folder for report.md, report.html, summary.json, records.csv and the records themselves; a second run into
    /// it makes only what is missing.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the summary as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
}

/// The images of a run: made from a seed, or given.
enum Cases {
    Scenes(Bench),
    Files(Box<Pairs>),
}

impl Cases {
    fn len(&self) -> usize {
        match self {
            Cases::Scenes(bench) => bench.len(),
            Cases::Files(pairs) => pairs.len(),
        }
    }

    fn name(&self, number: usize) -> Result<String, EvaluateError> {
        match self {
            Cases::Scenes(bench) => Ok(bench.name(number)),
            Cases::Files(pairs) => pairs.name(number),
        }
    }

    fn case(&self, number: usize) -> Result<Case, EvaluateError> {
        match self {
            Cases::Scenes(bench) => bench.case(number),
            Cases::Files(pairs) => pairs.case(number),
        }
    }

    fn told(&self) -> Told {
        match self {
            Cases::Scenes(bench) => bench.told,
            Cases::Files(_) => Told::default(),
        }
    }
}

/// What the runs of methods on images have given.
#[derive(Default)]
struct Evidence {
    records: Vec<Record>,
    /// What each method takes at each size, for advice.
    trials: Vec<budget::Trial>,
    /// Scores at each value that was swept.
    points: Vec<(String, String, f64, f64)>,
}

/// Writes a file of a report.
fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    write_whole(&path, text.as_bytes()).with_context(|| path.display().to_string())
}

/// What is thought of a summary.
pub struct Judgement {
    /// For programs.
    pub record: serde_json::Value,
    /// For people.
    pub text: String,
    /// Why it is refused, if it is.
    pub refusal: Option<String>,
}

/// Whether a name is that of a model, alone or mixed with classical methods (`auto`, `auto:FILE`).
fn is_model(name: &str) -> bool {
    let alone = name.strip_prefix(AUTO).map_or(name, |rest| rest.strip_prefix(':').unwrap_or(DEFAULT));
    alone == DEFAULT || Path::new(alone).exists()
}

impl Settings {
    /// Methods by their names: those that need no training, `default`, and the paths of models, with every combination of
    /// the models' settings that are swept.
    pub fn methods(&self, names: &[String]) -> Result<Vec<Box<dyn Method>>> {
        let usual = clearshot_restore::learned::Settings {
            samples: self.samples,
            sampler: self.sampler.clone(),
            steps: self.steps,
            seed: self.seed,
            ..Default::default()
        };
        let mut out: Vec<Box<dyn Method>> = Vec::new();
        for name in names.iter().map(|n| n.trim()) {
            // A method's name means the method, also where a folder is called the same.
            match method::by_name(name) {
                Ok(found) => {
                    out.push(found);
                    continue;
                }
                Err(e) if !is_model(name) => return Err(e.into()),
                Err(_) => {}
            }
            for combination in clearshot_config::sweep(&self.swept(true)?)? {
                let mut settings = usual.clone();
                for setting in &combination {
                    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
                    let number =
                        || value.trim().parse().with_context(|| format!("--sweep {setting}: a number"));
                    match key {
                        "samples" => settings.samples = number()?,
                        "steps" => settings.steps = number()?,
                        _ => settings.sampler = value.trim().into(),
                    }
                }
                let device = self.device.device(self.threads.map(usize::from))?;
                let model = Learned::open(name, settings, device).with_context(|| format!("model {name}"))?;
                out.push(Box::new(match combination.is_empty() {
                    true => model,
                    false => model.called(format!("{name} ({})", combination.join(", "))),
                }));
            }
        }
        Ok(out)
    }

    /// Refuses what would put several settings of one method beside each other.
    pub fn check_one_setting(&self) -> Result<()> {
        if let Some(sweep) = self.sweep.first() {
            bail!("--sweep {sweep}: two models are compared under one setting; leave it out, or use eval");
        }
        if self.size.len() > 1 {
            let sizes: Vec<String> = self.size.iter().map(|s| s.to_string()).collect();
            bail!("--size {}: two models are compared at one size; name one, or use eval", sizes.join(","));
        }
        Ok(())
    }

    /// What is swept of models, or of what methods are told of the camera.
    fn swept(&self, of_models: bool) -> Result<Vec<String>> {
        const MODELS: [&str; 3] = ["samples", "steps", "sampler"];
        const CAMERAS: [&str; 5] = ["gain", "background", "read_noise", "psf", "shift"];
        let mut out = Vec::new();
        for text in &self.sweep {
            let key = text.split('=').next().unwrap_or("").trim();
            let is_model = MODELS.contains(&key);
            if !is_model && !CAMERAS.contains(&key) {
                bail!("--sweep {key}: there are {} and {}", CAMERAS.join(", "), MODELS.join(", "));
            }
            if is_model == of_models {
                out.push(text.clone());
            }
        }
        Ok(out)
    }

    /// The number of the camera that is swept, if it is one alone and at one size.
    fn swept_alone(&self) -> Result<Option<String>> {
        let swept = self.swept(false)?;
        let key = swept.first().and_then(|text| text.split('=').next()).map(|k| k.trim().to_string());
        Ok(key.filter(|_| swept.len() == 1 && self.size.len() == 1))
    }

    /// Makes the records and the reports. `title` heads them.
    pub fn evaluate(&self, title: &str, methods: &[Box<dyn Method>]) -> Result<()> {
        self.evaluated(title, methods, &|_| Ok(None))
    }

    /// The same; `judge` may refuse the summary, which is reported all the same.
    pub fn evaluated(
        &self,
        title: &str,
        methods: &[Box<dyn Method>],
        judge: &dyn Fn(&Summary) -> Result<Option<Judgement>>,
    ) -> Result<()> {
        self.check(methods)?;
        let grouping = Grouping::parse(self.group.as_deref())?;
        let runs = self.runs()?;
        let evidence = self.evidence(&runs, methods)?;
        let records = &evidence.records;
        let summary = match runs.first() {
            Some((_, Cases::Files(_))) => Summary::grouped(records, &|name| grouping.of(name))?,
            _ => Summary::of(records)?,
        };
        let about = self.about(&runs, methods);
        let stressed = if self.stress { self.stressed(methods)? } else { String::new() };
        let curves = Curve::of(&evidence.points);
        let markdown = report::markdown(title, &about, &summary) + &stressed + &curve::markdown(&curves);
        if let Some(folder) = &self.out {
            put(folder, "report.md", &markdown)?;
            put(folder, "records.csv", &report::csv(records))?;
            put(folder, "summary.json", &report::json(&summary))?;
            if !curves.is_empty() {
                put(folder, "curves.csv", &curve::csv(&curves))?;
            }
            let again = "clearshot eval, seeds and settings as above: a second run gives the same file";
            let about: Vec<String> = about.into_iter().chain([again.to_string()]).collect();
            let pictures = illustrations(methods, &runs)?;
            put(folder, "report.html", &report::html(title, &about, &summary, &pictures, &[]))?;
        }
        self.verdict(&summary, records.len(), judge, &(markdown + &self.advice(&evidence.trials)))
    }

    /// Refuses what cannot work before anything takes time, and makes the folder of the reports.
    fn check(&self, methods: &[Box<dyn Method>]) -> Result<()> {
        if let Some(method) = methods.iter().find(|m| m.needs_psf() && self.psf_sigma.is_none()) {
            let name = method.name();
            match self.truth {
                Some(_) => bail!(
                    "{name} needs a PSF, and files come without one here; leave it out, or use deconvolve"
                ),
                None => bail!(
                    "{name} needs a PSF: say how much the scenes are blurred by --psf-sigma, or leave it out"
                ),
            }
        }
        let Some(folder) = &self.out else { return Ok(()) };
        if clearshot_image::address::is_address(folder) {
            bail!("{}: reports go into a folder of this machine", folder.display());
        }
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())
    }

    /// Runs the methods on all images, as far as records of it are not there already.
    fn evidence(&self, runs: &[(String, Cases)], methods: &[Box<dyn Method>]) -> Result<Evidence> {
        let mut store = match &self.out {
            Some(folder) => Store::open(&folder.join("records.jsonl"))?,
            None => Store::default(),
        };
        let alone = self.swept_alone()?;
        let mut all = Evidence::default();
        let mut made = 0;
        for (label, cases) in runs {
            budget::reset_peak();
            let mut line = Line::new("evaluating".into());
            let mut times: BTreeMap<String, (f64, usize)> = BTreeMap::new();
            let mut heard = |p: Progress<'_>| {
                made += 1;
                let time = times.entry(p.record.method.clone()).or_default();
                (time.0, time.1) = (time.0 + p.seconds, time.1 + 1);
                if !self.quiet {
                    line.show(p.done, p.total);
                }
            };
            let name = |n: usize| cases.name(n);
            let case = |n: usize| cases.case(n);
            // Times are asked of scenes alone.
            let at_once = matches!(cases, Cases::Files(_));
            let told = cases.told();
            let mut own = run(methods, cases.len(), &name, &case, &told, at_once, &mut store, &mut heard)?;
            line.end();
            if let (Cases::Scenes(bench), true) = (cases, runs.len() > 1) {
                all.trials.extend(times.iter().map(|(name, time)| trial(name, bench, &own, *time)));
                if let Some(key) = &alone {
                    all.points.extend(methods.iter().map(|m| point(m.name(), key, bench, &own)));
                }
                own.iter_mut().for_each(|r| r.method = format!("{}{label}", r.method));
            }
            all.records.extend(own);
        }
        let (found, total) = (all.records.len() - made, all.records.len());
        if found > 0 && !self.quiet {
            eprintln!("clearshot: {found} of {total} records were there already");
        }
        Ok(all)
    }

    /// Prints the summary with what is thought of it.
    ///
    /// # Errors
    /// If it is refused, or restorations failed.
    fn verdict(
        &self,
        summary: &Summary,
        records: usize,
        judge: &dyn Fn(&Summary) -> Result<Option<Judgement>>,
        text: &str,
    ) -> Result<()> {
        // Where some restorations failed, nothing is judged good.
        let whole = summary.failures.is_empty();
        let judgement = judge(summary)?.filter(|j| whole || j.refusal.is_some());
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut record: serde_json::Value = serde_json::from_str(&report::json(summary))?;
            if let Some(judgement) = &judgement {
                record["judgement"] = judgement.record.clone();
            }
            writeln!(out, "{record:#}")?;
        } else if !self.quiet {
            write!(out, "{text}{}", judgement.as_ref().map_or("", |j| &j.text))?;
        }
        out.flush()?;
        if let Some(why) = judgement.and_then(|j| j.refusal) {
            bail!(why);
        }
        if !whole {
            bail!("{} of {records} restorations failed; the report lists them", summary.failures.len());
        }
        Ok(())
    }

    fn about(&self, runs: &[(String, Cases)], methods: &[Box<dyn Method>]) -> Vec<String> {
        let mut out = Vec::new();
        match runs.first() {
            Some((_, Cases::Scenes(b))) => {
                let sizes: Vec<String> = self.size.iter().map(|s| format!("{s} x {s}")).collect();
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

    /// Every combination of sizes and of what is swept, with what distinguishes it.
    fn runs(&self) -> Result<Vec<(String, Cases)>> {
        if let (Some(truth), Some(noisy)) = (&self.truth, &self.noisy) {
            if let Some(sweep) = self.swept(false)?.first() {
                bail!(
                    "--sweep {sweep}: the camera is swept over generated scenes only; leave it out with --truth, and say what the camera is by --gain, --offset and --read-noise"
                );
            }
            let camera = self.camera.read()?;
            let from = |of: fn(&Camera) -> f64| camera.as_ref().map(of);
            let known = Known {
                gain: self.gain.or(from(|c| c.gain)),
                offset: self.offset.or(from(|c| c.offset)),
                read_noise: self.read_noise.or(from(|c| c.read_noise)),
                correlation: camera.map(|c| c.correlation),
                ..Known::default()
            };
            let terms = Terms { known, exposure: self.exposure, range: self.range, fit: self.fit };
            let pairs = Pairs::new(truth, noisy, terms)?;
            pairs.unpaired.iter().for_each(|u| eprintln!("clearshot: {u}"));
            return Ok(vec![(String::new(), Cases::Files(Box::new(pairs)))]);
        }
        if self.camera.is_given() {
            bail!("--camera: generated scenes have a camera of their own; name files by --truth and --noisy");
        }
        let scenes = match self.scenes.as_str() {
            "benchmark" => Bench::default().scenes,
            "all" => SCENES.iter().map(|k| k.name.to_string()).collect(),
            list => list.split(',').map(|s| s.trim().to_string()).collect(),
        };
        let mut out = Vec::new();
        for &size in &self.size {
            for combination in clearshot_config::sweep(&self.swept(false)?)? {
                let mut told = Told::default();
                for setting in &combination {
                    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
                    let place = match key.trim() {
                        "gain" => &mut told.gain,
                        "background" => &mut told.background,
                        "read_noise" => &mut told.read_noise,
                        "psf" => &mut told.psf,
                        _ => &mut told.shift,
                    };
                    *place = value.trim().parse().with_context(|| format!("--sweep {setting}: a factor"))?;
                }
                let bench = Bench {
                    scenes: scenes.clone(),
                    peaks: self.peaks.clone(),
                    count: self.count,
                    size,
                    seed: self.seed,
                    psf_sigma: self.psf_sigma,
                    told,
                };
                bench.check()?;
                let mut label: Vec<String> = combination;
                if self.size.len() > 1 {
                    label.insert(0, format!("{size} px"));
                }
                let label = if label.is_empty() { String::new() } else { format!(" ({})", label.join(", ")) };
                out.push((label, Cases::Scenes(bench)));
            }
        }
        Ok(out)
    }

    fn advice(&self, trials: &[budget::Trial]) -> String {
        let asked = self.max_memory.is_some() || self.max_seconds.is_some() || self.min_psnr.is_some();
        if self.size.len() < 2 && !asked {
            return String::new();
        }
        let limits =
            budget::Limits { bytes: self.max_memory, seconds: self.max_seconds, psnr: self.min_psnr };
        let mut out = String::from("\n## Which size to use\n\n");
        if trials.is_empty() {
            return out
                + "Give several sizes (--size 64,128,256) and a fresh --out, so that times can be measured.\n";
        }
        out += "| method | size | PSNR | s a megapixel | peak memory | |\n|---|---|---|---|---|---|\n";
        for t in trials {
            let memory = t.bytes.map_or("-".into(), clearshot_graph::plan::human);
            let broken = budget::broken(t, &limits).join("; ");
            out += &format!(
                "| {} | {} | {:.2} | {:.2} | {memory} | {broken} |\n",
                t.method, t.size, t.psnr, t.seconds
            );
        }
        out += &match budget::recommend(trials, &limits) {
            Some(t) => format!(
                "\nUse {} at {} pixels: {:.2} dB, the best that keeps the limits.\n",
                t.method, t.size, t.psnr
            ),
            None => "\nNothing keeps all limits; the last column says what each breaks.\n".to_string(),
        };
        out
    }

    fn stressed(&self, methods: &[Box<dyn Method>]) -> Result<String> {
        let bench = Bench {
            count: self.count.max(2),
            size: self.size.first().copied().unwrap_or(128),
            seed: self.seed,
            ..Bench::default()
        };
        let mut out = String::from(
            "\n## Pictures of nothing\n\nMean signal in units of the peak with its 95 % interval, and the brightest pixel in standard deviations of the noise.\n\n| method | peak | mean signal | brightest |\n|---|---|---|---|\n",
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
        out += "\n## Faint lines\n\nThe share of a line that comes back, and how far it stands above the rest (3 is seen).\n\n| method | peak | brightness of the line | recovered | contrast |\n|---|---|---|---|---|\n";
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

/// What a method took and reached at one size; `time` is seconds and images.
fn trial(name: &str, bench: &Bench, records: &[Record], time: (f64, usize)) -> budget::Trial {
    let megapixels = time.1 as f64 * (bench.size * bench.size) as f64 / 1e6;
    budget::Trial {
        method: name.to_string(),
        size: bench.size,
        psnr: mean_psnr(name, records),
        seconds: time.0 / megapixels,
        bytes: peak_bytes(),
    }
}

/// A point of a method's curve: what was told, and the mean PSNR.
fn point(method: &str, key: &str, bench: &Bench, records: &[Record]) -> (String, String, f64, f64) {
    let told = match key {
        "gain" => bench.told.gain,
        "background" => bench.told.background,
        "read_noise" => bench.told.read_noise,
        "psf" => bench.told.psf,
        _ => bench.told.shift,
    };
    (method.into(), key.into(), told, mean_psnr(method, records))
}

fn mean_psnr(method: &str, records: &[Record]) -> f64 {
    let own: Vec<f64> =
        records.iter().filter(|r| r.method == method).filter_map(|r| r.scores().map(|s| s.psnr)).collect();
    own.iter().sum::<f64>() / own.len().max(1) as f64
}

/// The first image of each scene at its middle peak, restored by every method.
fn illustrations(methods: &[Box<dyn Method>], runs: &[(String, Cases)]) -> Result<Vec<Illustration>> {
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
        None => "the range 255 for clean files of 8 bits, and otherwise the greatest less the least value of each clean image".into(),
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
