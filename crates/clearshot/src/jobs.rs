//! Proposes a number of jobs for a set of files, and the resources that each needs.
//!
//! A file of medium size is restored to measure the time, and the plan of the largest file gives the memory of a job.
//! Files are then assigned as the jobs themselves do it ([`crate::JobPart`]), to the smallest number of parts that
//! finish in time.

use crate::error::{Error, Result};
use crate::file::restore_file;
use crate::items::light;
use crate::job_part::{shares, size_of};
use crate::observer::{Event, Observer};
use crate::restorer::Restorer;
use crate::settings::Settings;
use clearshot_image::Image;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A number of jobs for a set of files, and what they need.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobPlan {
    /// Files that can be read.
    pub files: usize,
    /// Files that cannot be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Pixels of all files.
    pub pixels: u64,
    /// The file whose restoration was timed.
    pub timed: PathBuf,
    /// Seconds per million pixels on this machine.
    pub seconds_per_megapixel: f64,
    /// Seconds before a job restores its first file: loading and compiling the network.
    pub start_seconds: f64,
    /// Peak memory of a job in bytes: of the process if the network runs on the CPU, otherwise of GPU and process
    /// together.
    pub memory_bytes: u64,
    /// The proposed number of jobs: the `N` of `--part I/N`.
    pub parts: usize,
    /// Seconds of the longest job.
    pub longest_seconds: f64,
    /// Seconds that a single job would take for all files.
    pub alone_seconds: f64,
}

/// What is heard of a file that is restored for its time and memory.
struct Heard<'o> {
    observer: &'o mut dyn Observer,
    begun: Instant,
    /// Seconds until the plan was made, and the bytes that it takes.
    planned: Option<(f64, u64)>,
    /// Whether the plan is all that is asked for.
    plan_only: bool,
}

impl Observer for Heard<'_> {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.observer.progress(done, total)
    }

    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        if let Event::Plan(plan) = event {
            let bytes = plan.forecast.map_or(0, |f| f.device_bytes + f.host_bytes);
            let (seconds, most) = self.planned.unwrap_or((self.begun.elapsed().as_secs_f64(), 0));
            self.planned = Some((seconds, most.max(bytes as u64)));
            if self.plan_only {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Proposes a number of jobs of which none takes longer than `seconds`, as far as whole files allow. `scratch` is a
/// folder for temporary files.
///
/// # Errors
/// If none of the files can be read, the timed file cannot be restored, or the observer stops it.
pub fn plan_jobs(
    files: &[PathBuf],
    restorer: &Restorer,
    settings: &Settings,
    seconds: f64,
    scratch: &Path,
    observer: &mut dyn Observer,
) -> Result<JobPlan> {
    let mut known: Vec<(&PathBuf, u64)> = vec![];
    let mut unreadable = vec![];
    for file in files {
        match pixels(file) {
            Ok(pixels) => known.push((file, pixels)),
            Err(e) => unreadable.push((file.clone(), e.to_string())),
        }
    }
    let mut by_size = known.clone();
    by_size.sort_by_key(|(_, pixels)| *pixels);
    let (Some(&(largest, _)), Some(&(timed, timed_pixels))) =
        (by_size.last(), by_size.get(by_size.len() / 2))
    else {
        let why = unreadable.first().map_or("there are no files".into(), |(_, why)| why.clone());
        return Err(Error::Refused(format!("none of {} files can be planned for: {why}", files.len())));
    };
    let out = scratch.join("timed.tif");
    let settings = Settings { replace: true, ..settings.clone() };
    let run = |file: &Path, plan_only: bool, observer: &mut dyn Observer| -> Result<(f64, f64, u64)> {
        let mut heard = Heard { observer, begun: Instant::now(), planned: None, plan_only };
        let made = restore_file(file, &out, restorer, &settings, &mut heard);
        let (whole, planned) = (heard.begun.elapsed().as_secs_f64(), heard.planned);
        match (made, planned) {
            (Err(Error::Stopped), Some(_)) if plan_only => {}
            (made, _) => {
                made?;
            }
        }
        let (start, bytes) = planned.unwrap_or_default();
        Ok((start, whole - start, bytes))
    };
    let (start_seconds, taken, planned) = run(timed, false, observer)?;
    // What the process takes beside what was planned it takes for the largest file too.
    let beside = clearshot_runtime::peak_bytes().map_or(0, |bytes| bytes as u64).saturating_sub(planned);
    let largest_bytes = if largest == timed { planned } else { run(largest, true, observer)?.2 };
    let each = taken / timed_pixels.max(1) as f64;
    let sizes: Vec<Option<u64>> = known.iter().map(|(file, _)| size_of(file)).collect();
    let longest = |parts: usize| {
        let mut sums = vec![0.0; parts];
        for (part, (_, pixels)) in shares(&sizes, parts).into_iter().zip(&known) {
            sums[part] += each * *pixels as f64;
        }
        start_seconds + sums.into_iter().fold(0.0, f64::max)
    };
    let total: u64 = known.iter().map(|(_, pixels)| pixels).sum();
    let all = each * total as f64;
    let fewest = (all / (seconds - start_seconds).max(1e-9)).ceil().max(1.0);
    let mut parts = (fewest.min(known.len() as f64) as usize).max(1);
    while parts < known.len() && longest(parts) > seconds {
        parts += parts.div_ceil(20);
    }
    let parts = parts.min(known.len());
    Ok(JobPlan {
        files: known.len(),
        unreadable,
        pixels: total,
        timed: timed.clone(),
        seconds_per_megapixel: 1e6 * each,
        start_seconds,
        memory_bytes: largest_bytes + beside,
        parts,
        longest_seconds: longest(parts),
        alone_seconds: start_seconds + all,
    })
}

/// Pixels of all images of a file.
fn pixels(file: &Path) -> Result<u64> {
    let first = Image::open(file)?;
    let of = |image: &Image| image.shape().iter().map(|&n| n as u64).product::<u64>();
    let mut sum = of(&first);
    for number in light(&first.description).0.into_iter().filter(|&n| n > 0) {
        sum += of(&Image::open_number(file, number)?);
    }
    Ok(sum)
}
