//! `clearshot profile restore`: runs `restore` and times all of its steps.

use super::ProfileArgs;
use crate::restore::Restore;
use anyhow::Result;
use clap::Args;
use clearshot_timeline::Timeline;
use serde_json::json;
use std::io::Write;

#[derive(Args)]
pub struct RestoreProfile {
    #[command(flatten)]
    restore: Restore,
    #[command(flatten)]
    profile: ProfileArgs,
}

impl RestoreProfile {
    pub fn run(self) -> Result<()> {
        self.profile.check()?;
        let timeline = match self.profile.profile_memory {
            true => Timeline::with_memory(clearshot_runtime::memory_in_use),
            false => Timeline::new(),
        };
        let json = self.restore.is_json();
        let attached = timeline.attach("restoring");
        timeline.set_active(true);
        let outcome = self.restore.run();
        timeline.set_active(false);
        drop(attached);
        outcome?;
        let report = timeline.report();
        self.profile.write(&timeline, &report)?;
        let mut out = std::io::stdout().lock();
        match json {
            true => writeln!(out, "{}", json!({"event": "profile", "profile": report}))?,
            false => writeln!(out, "{}\n{}", report.in_words(self.profile.top), self.profile.place())?,
        }
        Ok(())
    }
}
