//! Profiling of a run: which iterations are recorded, and the output.
//!
//! It does not affect the run: states, records and checkpoints are the same without it.

use super::Run;
use crate::config::{DebugConfig, Profiling};
use crate::data::scenes::kept_bytes;
use crate::error::{Result, TrainError};
use clearshot_runtime::memory_in_use;
use clearshot_timeline::{Attached, Memory, Report, Schedule, State, Timeline};
use std::path::{Path, PathBuf};

/// The folder of a run that a profile is written to.
pub const PROFILE: &str = "profile";
/// Nodes that are listed for people.
const LISTED: usize = 8;

/// See the module.
pub(super) struct Profiler {
    timeline: Timeline,
    schedule: Schedule,
    folder: PathBuf,
    /// Iterations that it has seen, and what became of the last.
    seen: u64,
    state: State,
    is_written: bool,
}

/// What the process uses, without the scenes that are kept: their pool fills during a run.
fn memory_beside_scenes() -> Memory {
    let used = memory_in_use();
    Memory { allocated: used.allocated.saturating_sub(kept_bytes()), ..used }
}

impl Profiler {
    /// One where the configuration asks for it. Of several ranks each has its own; those behind the first write theirs below its folder.
    pub fn of(config: &DebugConfig, out: &Path, rank: usize) -> Option<Profiler> {
        let timeline = match config.profile {
            Profiling::None => return None,
            Profiling::Time => Timeline::new(),
            Profiling::Memory => Timeline::with_memory(memory_beside_scenes),
        };
        let DebugConfig { wait, warm_up, active, repeat, .. } = *config;
        let schedule = Schedule { wait, warm_up, active, repeat };
        let folder = match rank {
            0 => out.join(PROFILE),
            other => out.join(PROFILE).join(format!("rank-{other}")),
        };
        Some(Profiler { timeline, schedule, folder, seen: 0, state: State::Wait, is_written: false })
    }

    /// This thread's phases are the run's.
    pub fn attach(&self) -> Option<Attached> {
        self.timeline.attach_again("training")
    }

    /// Before an iteration; says whether all are done.
    fn begin(&mut self, iteration: u64) -> bool {
        self.turn(self.schedule.state(self.seen));
        if self.state == State::Active {
            self.timeline.begin_iteration(iteration);
        }
        self.seen += 1;
        self.state == State::Over
    }

    fn turn(&mut self, next: State) {
        match (self.state, next) {
            (before, after) if before == after => {}
            (State::WarmUp, after) => {
                self.timeline.discard();
                self.timeline.set_active(after == State::Active);
            }
            (_, after) => self.timeline.set_active(matches!(after, State::WarmUp | State::Active)),
        }
        self.state = next;
    }

    /// Writes what was found, once.
    fn write(&mut self) -> Result<Option<Report>> {
        if std::mem::replace(&mut self.is_written, true) {
            return Ok(None);
        }
        self.turn(State::Over);
        let report = self.timeline.report();
        self.timeline.write(&self.folder, &report).map_err(|(path, error)| TrainError::Io { path, error })?;
        Ok(Some(report))
    }
}

impl Run<'_> {
    /// Before an iteration.
    pub(super) fn begin_profiled(&mut self) -> Result<()> {
        let iteration = self.progress.iteration;
        match self.profiler.as_mut().is_some_and(|p| p.begin(iteration)) {
            true => self.end_profile(),
            false => Ok(()),
        }
    }

    /// Says what was found and where it lies, once.
    pub(super) fn end_profile(&mut self) -> Result<()> {
        let Some(profiler) = &mut self.profiler else { return Ok(()) };
        let Some(report) = profiler.write()? else { return Ok(()) };
        let text = format!(
            "{}\n{}: trace.json (ui.perfetto.dev), stacks.txt (flame graphs), memory.csv, profile.json",
            report.in_words(LISTED),
            profiler.folder.display()
        );
        self.records.watch.note(&text);
        self.profile = Some(report);
        Ok(())
    }
}
