//! The program's observer of training runs, which prints their progress and handles Ctrl-C.

use clearshot::{Event, Observer};
use clearshot_train::Watch;
use clearshot_train::records::console::{Console, Show};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub struct Trainer {
    show: Show,
    console: Console,
    stop: Option<Arc<AtomicBool>>,
}

impl Trainer {
    /// Ends by Ctrl-C where a flag is given that it sets.
    pub fn new(show: Show, stop: Option<Arc<AtomicBool>>) -> Trainer {
        Trainer { show, console: Console::new(show), stop }
    }

    /// For people, or silent.
    pub fn for_people(quiet: bool, stop: Option<Arc<AtomicBool>>) -> Trainer {
        Trainer::new(if quiet { Show::Quiet } else { Show::for_terminal() }, stop)
    }

    fn flow(&self) -> ControlFlow<()> {
        match self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl Observer for Trainer {
    fn progress(&mut self, _: usize, _: usize) -> ControlFlow<()> {
        self.flow()
    }

    fn event(&mut self, _: &Path, event: &Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Training(status) => self.console.status(status),
            Event::Note(text) => self.console.note(text),
            Event::Warning(text) if self.show != Show::Quiet => eprintln!("clearshot: {text}"),
            Event::Record(record) => self.console.record(record),
            _ => {}
        }
        self.flow()
    }
}
