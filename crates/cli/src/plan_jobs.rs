//! `clearshot plan IMAGES --part auto`: proposes a number of cluster jobs for a set of files, from their sizes and the
//! time and memory of restoring on this machine.

use crate::outputs::listed;
use crate::progress::Line;
use anyhow::Result;
use clap::Args;
use clearshot::{Device, JobPlan, Observer, Restorer, Settings, plan_jobs};
use clearshot_graph::plan::human;
use clearshot_train::records::console::duration;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Args)]
pub struct JobArgs {
    /// Plan how to restore these files, folders, glob patterns or Zarr addresses, with --part auto. Default: a network is planned.
    #[arg(value_name = "IMAGES", requires = "part")]
    images: Vec<String>,
    /// Propose a number of jobs (auto) for the images: the N of `restore --part I/N`. One of the files is restored for its time.
    #[arg(long, value_name = "auto", requires = "images", value_parser = ["auto"])]
    part: Option<String>,
    /// Aim at jobs that take no longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    part_seconds: u32,
    /// Restore with this model. Default: the built-in model.
    #[arg(long, value_name = "MODEL", requires = "images")]
    model: Option<PathBuf>,
    /// Draw this many posterior samples of each image. Default: none.
    #[arg(long, default_value_t = 0, requires = "images", hide_default_value = true)]
    samples: usize,
}

/// Shows how far the timed file is, and stops it by Ctrl-C.
struct Timed {
    line: Line,
    stop: Arc<AtomicBool>,
}

impl Observer for Timed {
    fn progress(&mut self, done: usize, total: usize) -> ControlFlow<()> {
        self.line.show(done, total);
        match self.stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl JobArgs {
    /// Whether files are to be planned for.
    pub fn is_asked(&self) -> bool {
        !self.images.is_empty()
    }

    /// # Errors
    /// If there are no files, or the one that is timed cannot be restored.
    pub fn run(&self, device: Device, json: bool) -> Result<()> {
        let mut files = Vec::new();
        for source in &self.images {
            files.extend(listed(source)?);
        }
        let restorer = match &self.model {
            Some(path) => Restorer::load_on(path, device)?,
            None => Restorer::builtin_on(device)?,
        };
        let settings = Settings { samples: self.samples, ..Settings::default() };
        let scratch = tempfile::tempdir()?;
        let stop = crate::interrupt::finishing("stopping");
        let mut timed = Timed { line: Line::new("timing one file".into()), stop };
        let seconds = f64::from(self.part_seconds);
        let plan = plan_jobs(&files, &restorer, &settings, seconds, scratch.path(), &mut timed)?;
        timed.line.end();
        let mut out = std::io::stdout().lock();
        match json {
            true => writeln!(out, "{}", serde_json::to_string(&plan)?)?,
            false => write!(out, "{}", self.in_words(&plan, device))?,
        }
        Ok(())
    }

    fn in_words(&self, plan: &JobPlan, device: Device) -> String {
        let mut text = format!(
            "{} files, {:.1} megapixels, on {device}\n  {:<22} {:.3} s per megapixel, {} before the first ({})\n",
            plan.files,
            1e-6 * plan.pixels as f64,
            "time, measured",
            plan.seconds_per_megapixel,
            duration(plan.start_seconds),
            plan.timed.display(),
        );
        let memory = human(plan.memory_bytes as usize);
        text += &format!("  {:<22} {memory}\n", "memory of a job");
        text += &format!("  {:<22} {}\n", "one job for all", duration(plan.alone_seconds));
        text += &format!(
            "  {:<22} {}, the longest of which takes {}\n",
            "jobs proposed",
            plan.parts,
            duration(plan.longest_seconds)
        );
        if plan.longest_seconds > f64::from(self.part_seconds) {
            let why = "one file alone takes longer, and files are not divided between jobs";
            text += &format!("that is longer than {} s: {why}\n", self.part_seconds);
        }
        for (path, why) in &plan.unreadable {
            text += &format!("left out: {}: {why}\n", path.display());
        }
        let (last, minutes) = (plan.parts - 1, (2.0 * plan.longest_seconds / 60.0).ceil());
        let gibibytes = (1.25 * plan.memory_bytes as f64 / f64::from(1 << 30)).ceil();
        text += &format!(
            "for Slurm, with a quarter more memory and twice the time:\n  sbatch --array=0-{last} --mem={gibibytes}G --time={minutes} --wrap 'clearshot restore {} -o restored --part auto'\n",
            self.images.join(" ")
        );
        text
    }
}
