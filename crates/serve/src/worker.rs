//! The only thread that computes: it owns the restorer, takes one job or array at a time from the queue, and reports progress.

use crate::jobs::{Job, Made, Queue, State, Task, Wanted, seconds_left};
use crate::refusal::{Refusal, without};
use crate::server::Shared;
use crate::store::size;
use clearshot::{
    Candidate, DeviceName, Error, Event, ImageReport, KnownCamera, Observer, Report, Restorer, Settings,
    Stacks, restore_file,
};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The width of the method `gaussian`, as the command line has it.
const GAUSSIAN: f32 = clearshot_restore::classical::gaussian::Gaussian::USUAL.sigma;
/// Samples at most: each takes as long as the steps of the sampler.
const MOST_SAMPLES: u32 = 64;
const MOST_STEPS: u32 = 1000;
/// Notices that a report keeps at most.
const MOST_NOTICES: usize = 50;
/// Endings of formats that are only read.
const NOT_WRITTEN: [&str; 2] = ["jpg", "jpeg"];

/// The restorer, made when it is first needed.
pub struct Engine {
    pub model: Option<PathBuf>,
    pub device: DeviceName,
    pub threads: Option<usize>,
    restorer: Option<Restorer>,
}

impl Engine {
    pub fn new(model: Option<PathBuf>, device: DeviceName, threads: Option<usize>) -> Engine {
        Engine { model, device, threads, restorer: None }
    }

    /// # Errors
    /// If the model cannot be read, or the device is not there.
    pub fn restorer(&mut self) -> clearshot::Result<&Restorer> {
        if self.restorer.is_none() {
            let device = self.device.device(self.threads)?;
            self.restorer = Some(match &self.model {
                Some(path) => Restorer::load_on(path, device)?,
                None => Restorer::builtin_on(device)?,
            });
        }
        self.restorer.as_ref().ok_or(Error::Stopped)
    }
}

impl Wanted {
    /// What the library is asked for, as `clearshot restore` asks it.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn settings(&self) -> Result<Settings, Refusal> {
        let only = match self.method.as_deref().unwrap_or("auto") {
            "auto" => None,
            "model" => Some(Candidate::Model),
            "bm3d" => Some(Candidate::Bm3d),
            "gaussian" => Some(Candidate::Gaussian(GAUSSIAN)),
            "raw" => Some(Candidate::Raw),
            other => {
                let why = format!("method {other}: auto, model, bm3d, gaussian or raw is needed");
                return Err(Refusal::bad(why));
            }
        };
        let samples = self.samples.unwrap_or(0);
        let steps = self.steps.unwrap_or(25);
        if samples > MOST_SAMPLES || !(1..=MOST_STEPS).contains(&steps) {
            let why = format!("samples go from 0 to {MOST_SAMPLES}, steps from 1 to {MOST_STEPS}");
            return Err(Refusal::bad(why));
        }
        for (key, value) in
            [("offset", self.offset), ("read_noise", self.read_noise), ("background", self.background)]
        {
            if value.is_some_and(|v| !v.is_finite() || (key != "offset" && v < 0.0)) {
                return Err(Refusal::bad(format!("{key}: a finite number, not negative, is needed")));
            }
        }
        if self.gain.is_some_and(|g| !(g.is_finite() && g > 0.0)) {
            return Err(Refusal::bad("gain: a finite number above zero is needed"));
        }
        let camera = KnownCamera {
            gain: self.gain,
            offset: self.offset,
            read_noise: self.read_noise,
            background: self.background,
            ..KnownCamera::default()
        };
        Ok(Settings {
            camera,
            item: self.item.clone(),
            stacks: if self.planes { Stacks::Planes } else { Stacks::Auto },
            only,
            frames_alone: self.frames_alone,
            colours_alone: self.colours_alone,
            samples: samples as usize,
            std: self.std,
            chi2: self.chi2,
            steps: steps as usize,
            seed: self.seed,
            float: self.float,
            ..Settings::default()
        })
    }
}

/// Works until the server ends.
pub fn work(shared: &Shared, mut engine: Engine) {
    while let Some(task) = shared.queue.next() {
        match task {
            Task::Array(task) => {
                let outcome = caught(|| (task.run)(&mut engine)).unwrap_or_else(|| Err(Refusal::ours()));
                let _ = task.reply.send(outcome);
            }
            Task::File(job, flag) => {
                let since = Instant::now();
                let outcome = caught(|| restore(shared, &mut engine, &job, &flag));
                let outcome = outcome
                    .unwrap_or_else(|| Err("the program failed on this file (a bug)".to_string().into()));
                shared.metrics.job(since.elapsed());
                shared.queue.over(|job| match outcome {
                    Ok((report, made)) => {
                        (job.state, job.report, job.made) = (State::Done, Some(report), made)
                    }
                    Err(Failure::Stopped) => job.state = State::Cancelled,
                    Err(Failure::Why(why)) => (job.state, job.error) = (State::Failed, Some(why)),
                });
            }
        }
    }
}

/// The result of a function; `None` if it panics, after a message on standard error.
fn caught<T>(function: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(function)).ok()
}

enum Failure {
    Stopped,
    Why(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Why(why)
    }
}

fn restore(
    shared: &Shared,
    engine: &mut Engine,
    job: &Job,
    flag: &AtomicBool,
) -> Result<(Value, Vec<Made>), Failure> {
    let words = |r: Refusal| Failure::Why(r.why);
    let input = shared.store.path(&job.file).map_err(words)?;
    let folder = shared.queue.folder(&job.id);
    clear(&folder);
    let _held = shared.store.reserve(size(&input)).map_err(words)?;
    let output = folder.join(result_name(&input));
    let settings = job.wanted.settings().map_err(words)?;
    let mut watch = Watch { queue: &shared.queue, flag, since: Instant::now(), notices: Vec::new() };
    let outcome =
        engine.restorer().and_then(|restorer| restore_file(&input, &output, restorer, &settings, &mut watch));
    let report = outcome.map_err(|e| match e {
        Error::Stopped => Failure::Stopped,
        other => Failure::Why(without(&without(&other.to_string(), &input), &output)),
    });
    if report.is_err() {
        clear(&folder);
    }
    let report = report?;
    let notices: Vec<String> =
        watch.notices.iter().map(|said| without(&without(said, &input), &output)).collect();
    Ok((record(&report, &notices), made(&report, &job.id)))
}

/// Takes away what an earlier attempt has left in a job's folder.
fn clear(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let _ = std::fs::remove_dir_all(path);
        } else if entry.file_name() != crate::jobs::RECORD {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The result is called as the input, and is a TIFF file where its format is only read.
fn result_name(input: &Path) -> String {
    let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let ending = input.extension().map(|e| e.to_string_lossy().to_lowercase());
    match ending.is_some_and(|e| NOT_WRITTEN.contains(&e.as_str())) {
        true => format!("{}.tif", clearshot_image::dataset::list::stem(input)),
        false => name,
    }
}

fn made(report: &Report, id: &str) -> Vec<Made> {
    let of_image = |image: &ImageReport| -> Vec<Made> {
        let named = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?.to_string();
            let stem = clearshot_image::dataset::list::stem(path);
            let first = *path == image.output;
            let what = ["std", "chi2"].into_iter().find(|what| !first && stem.ends_with(&format!("_{what}")));
            let file = format!("job/{id}/{name}");
            Some(Made { what: what.unwrap_or("image").into(), file, item: image.item })
        };
        image.written.iter().filter_map(named).collect()
    };
    let mut all: Vec<Made> = report.images.iter().flat_map(of_image).collect();
    // Several images may be in one file.
    let mut seen = HashSet::new();
    all.retain(|made| seen.insert(made.file.clone()));
    all
}

/// The result for a file, for the client.
fn record(report: &Report, notices: &[String]) -> Value {
    let image = |i: &ImageReport| {
        json!({
            "item": i.item, "seconds": i.seconds, "chi2": i.chi2, "camera": i.camera, "choice": i.choice,
            "restored_by": i.choice.as_ref().map(clearshot::Choice::in_words),
            "clipped": i.clipped, "filled": i.filled, "saturated": i.saturated, "unfamiliar": i.unfamiliar,
            "interval_90": i.interval_90, "exposures": i.exposures, "left_over": i.left_over, "colours": i.colours,
        })
    };
    json!({"images": report.images.iter().map(image).collect::<Vec<_>>(), "notices": notices})
}

/// Tells the queue of progress, and stops when a job is cancelled.
struct Watch<'q> {
    queue: &'q Queue,
    flag: &'q AtomicBool,
    since: Instant,
    /// The messages that the report keeps.
    notices: Vec<String>,
}

impl Watch<'_> {
    fn flow(&self) -> ControlFlow<()> {
        if self.flag.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Observer for Watch<'_> {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.queue.progress(|p| {
            (p.done, p.total) = (done, total);
            p.seconds_left = seconds_left(self.since, done, total);
        });
        self.flow()
    }

    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        let said = match event {
            Event::Notice(notice) => {
                let said = notice.to_string();
                if self.notices.len() < MOST_NOTICES {
                    self.notices.push(said.clone());
                }
                Some(said)
            }
            Event::Choice { choice, .. } => Some(format!("restored by: {}", choice.in_words())),
            _ => None,
        };
        if let Some(said) = said {
            self.queue.progress(|p| p.said.push(said));
        }
        self.flow()
    }
}
