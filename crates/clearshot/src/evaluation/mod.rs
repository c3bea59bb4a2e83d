//! Evaluates methods: every method on every image, scored against the truth, with intervals, tests and reports.
//!
//! The records are defined by the crate `clearshot_evaluate`; this module combines methods, images, sweeps and reports.

mod cases;
mod settings;
mod words;

pub use settings::{EvaluateFiles, EvaluateSettings};

use crate::error::{Error, Result};
use crate::job_part::JobPart;
use crate::observer::Observer;
use cases::Cases;
use clearshot_evaluate::curve::{self, Curve};
use clearshot_evaluate::files::Grouping;
use clearshot_evaluate::{
    Bench, EvaluateError, Method, Progress, Record, Store, Summary, budget, report, run,
};
use clearshot_runtime::peak_bytes;
use clearshot_tensor::store::write_whole;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

/// The result of an evaluation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Evaluation {
    /// The methods, by the names of their rows.
    pub methods: Vec<String>,
    /// One record for each method and image.
    pub records: Vec<Record>,
    /// How many of them already existed in `out`.
    pub found: usize,
    /// Means, intervals and tests; empty if only one part of the images was evaluated.
    pub summary: Summary,
    /// The report as Markdown.
    pub markdown: String,
}

impl Evaluation {
    /// The summary as JSON.
    pub fn json(&self) -> String {
        report::json(&self.summary)
    }
}

/// Evaluates methods by name: `raw`, `gaussian`, `median`, `wiener`, `nlm`, `tv` or `bm3d`, each alone or after `gat+`; `default` and `auto` for the built-in
/// model; or a model's file or folder. The observer receives the number of finished records and can stop the
/// evaluation: records in `out` are kept.
///
/// # Errors
/// If a method, a model, an image or a setting is wrong, a report cannot be written, or the observer stops it. Restorations that fail are part of the summary.
pub fn evaluate(
    methods: &[impl AsRef<str>],
    settings: &EvaluateSettings,
    observer: &mut dyn Observer,
) -> Result<Evaluation> {
    let methods = settings.methods(methods)?;
    settings.check(&methods)?;
    let group = settings.files.as_ref().and_then(|f| f.group.as_deref());
    let grouping = Grouping::parse(group)?;
    let runs = settings.runs(observer)?;
    let evidence = settings.evidence(&runs, &methods, observer)?;
    let records = evidence.records;
    if let Some(part) = settings.part {
        let markdown = format!(
            "part {part}: {} records; the same command without a part makes what is missing, and the report\n",
            records.len()
        );
        let methods = methods.iter().map(|m| m.name().to_string()).collect();
        return Ok(Evaluation {
            methods,
            records,
            found: evidence.found,
            summary: Summary::default(),
            markdown,
        });
    }
    let summary = match settings.files {
        Some(_) => Summary::grouped(&records, &|name| grouping.of(name))?,
        None => Summary::of(&records)?,
    };
    let about = settings.about(&runs, &methods);
    let stressed = if settings.stress { settings.stressed(&methods)? } else { String::new() };
    let curves = Curve::of(&evidence.points);
    let title = &settings.title;
    let mut markdown = report::markdown(title, &about, &summary) + &stressed + &curve::markdown(&curves);
    if let Some(folder) = &settings.out {
        put(folder, "report.md", &markdown)?;
        put(folder, "records.csv", &report::csv(&records))?;
        put(folder, "summary.json", &report::json(&summary))?;
        if !curves.is_empty() {
            put(folder, "curves.csv", &curve::csv(&curves))?;
        }
        let again = "clearshot eval, seeds and settings as above: a second run gives the same file";
        let about: Vec<String> = about.into_iter().chain([again.to_string()]).collect();
        let pictures = words::illustrations(&methods, &runs)?;
        put(folder, "report.html", &report::html(title, &about, &summary, &pictures, &[]))?;
    }
    markdown += &settings.advice(&evidence.trials);
    let methods = methods.iter().map(|m| m.name().to_string()).collect();
    Ok(Evaluation { methods, records, found: evidence.found, summary, markdown })
}

/// What the runs of methods on images have given.
#[derive(Default)]
struct Evidence {
    records: Vec<Record>,
    found: usize,
    /// What each method takes at each size, for advice.
    trials: Vec<budget::Trial>,
    /// Scores at each value that was swept.
    points: Vec<(String, String, f64, f64)>,
}

/// The records of a folder: those of its own file, which new ones go to, and those of other jobs beside it.
fn store_in(folder: &Path, part: Option<JobPart>) -> Result<Store> {
    let file = |n: String| folder.join(format!("records{n}.jsonl"));
    let own = file(part.map_or(String::new(), |p| format!(".{}-of-{}", p.index() + 1, p.count())));
    let mut store = Store::open(&own)?;
    let io = |source| Error::Io { path: folder.into(), source };
    let mut others: Vec<_> = vec![];
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("records.") && name.ends_with(".jsonl") && path != own {
            others.push(path);
        }
    }
    others.sort();
    others.iter().try_for_each(|path| store.take(path))?;
    Ok(store)
}

/// Writes a file of a report.
fn put(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    write_whole(&path, text.as_bytes()).map_err(|source| Error::Io { path, source })
}

impl EvaluateSettings {
    /// Refuses what cannot work before anything takes time, and makes the folder of the reports.
    fn check(&self, methods: &[Box<dyn Method>]) -> Result<()> {
        if let Some(method) = methods.iter().find(|m| m.needs_psf() && self.psf_sigma.is_none()) {
            let name = method.name();
            return Err(match self.files {
                Some(_) => Error::Refused(format!(
                    "{name} needs a PSF, and files come without one here; leave it out, or deconvolve them"
                )),
                None => Error::setting(
                    "psf_sigma",
                    format!("{name} needs a PSF; set the blur of the scenes, or leave the method out"),
                ),
            });
        }
        if self.part.is_some() && (self.out.is_none() || self.stress) {
            let why = "records of a part go into a folder that all jobs share (out), and the stress test is not cut into parts";
            return Err(Error::setting("part", why));
        }
        let Some(folder) = &self.out else { return Ok(()) };
        if clearshot_image::address::is_address(folder) {
            return Err(Error::value("out", folder.display(), "reports are written to local folders only"));
        }
        std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.clone(), source })
    }

    /// Runs the methods on all images, as far as records of it are not there already.
    fn evidence(
        &self,
        runs: &[(String, Cases)],
        methods: &[Box<dyn Method>],
        observer: &mut dyn Observer,
    ) -> Result<Evidence> {
        let mut store = match &self.out {
            Some(folder) => store_in(folder, self.part)?,
            None => Store::default(),
        };
        let alone = self.swept_alone()?;
        let (mut all, mut new, stopped) = (Evidence::default(), 0, Cell::new(false));
        for (label, cases) in runs {
            budget::reset_peak();
            let mut times: BTreeMap<String, (f64, usize)> = BTreeMap::new();
            let mut heard = |p: Progress<'_>| {
                new += 1;
                let time = times.entry(p.record.method.clone()).or_default();
                (time.0, time.1) = (time.0 + p.seconds, time.1 + 1);
                stopped.set(stopped.get() || observer.progress(p.done, p.total).is_break());
            };
            let own: Vec<usize> = (0..cases.len())
                .filter(|n| self.part.is_none_or(|part| n % part.count() == part.index()))
                .collect();
            let name = |n: usize| cases.name(own[n]);
            let case = |n: usize| match stopped.get() {
                true => Err(EvaluateError::Stopped),
                false => cases.case(own[n]),
            };
            // Times are asked of scenes alone.
            let at_once = matches!(cases, Cases::Files(_));
            let assumed = cases.assumed();
            let mut made = run(methods, own.len(), &name, &case, &assumed, at_once, &mut store, &mut heard)?;
            if let (Cases::Scenes(bench), true) = (cases, runs.len() > 1) {
                all.trials.extend(times.iter().map(|(name, time)| trial(name, bench, &made, *time)));
                if let Some(key) = &alone {
                    all.points.extend(methods.iter().map(|m| point(m.name(), key, bench, &made)));
                }
                made.iter_mut().for_each(|r| r.method = format!("{}{label}", r.method));
            }
            all.records.extend(made);
        }
        all.found = all.records.len() - new;
        Ok(all)
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

/// A point of a method's curve: the value that it was given, and the mean PSNR.
fn point(method: &str, key: &str, bench: &Bench, records: &[Record]) -> (String, String, f64, f64) {
    let assumed = match key {
        "gain" => bench.assumed.gain,
        "background" => bench.assumed.background,
        "read_noise" => bench.assumed.read_noise,
        "psf" => bench.assumed.psf,
        _ => bench.assumed.shift,
    };
    (method.into(), key.into(), assumed, mean_psnr(method, records))
}

fn mean_psnr(method: &str, records: &[Record]) -> f64 {
    let own: Vec<f64> =
        records.iter().filter(|r| r.method == method).filter_map(|r| r.scores().map(|s| s.psnr)).collect();
    own.iter().sum::<f64>() / own.len().max(1) as f64
}
