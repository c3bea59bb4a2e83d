//! `clearshot validate`: whether a new model may take the old one's place.

use crate::evaluating::Settings;
use anyhow::{Result, bail};
use clap::Args;
use clearshot_evaluate::gate::{SHARE, compare};
use std::io::Write;

#[derive(Args)]
pub struct Validate {
    /// The model in use, or a method's name.
    old: String,
    /// The one that is to take its place.
    new: String,
    #[command(flatten)]
    settings: Settings,
}

impl Validate {
    pub fn run(self) -> Result<()> {
        if self.old == self.new {
            bail!("{} is to be compared with itself; name two models", self.old);
        }
        self.settings.check_one_setting()?;
        let methods = self.settings.methods(&[self.old.clone(), self.new.clone()])?;
        let (old, new) = (methods[0].name().to_string(), methods[1].name().to_string());
        self.settings.evaluated(&format!("{new} in place of {old}"), &methods, &|summary, _| {
            let checks = compare(summary, &old, summary, &new)?;
            let failed: Vec<_> = checks.iter().filter(|c| !c.passes).collect();
            let mut out = std::io::stdout().lock();
            for c in &failed {
                writeln!(out, "{}, {}: {:.4} after {:.4}", c.metric, c.place, c.new, c.old)?;
            }
            if !failed.is_empty() {
                let percent = 100.0 * SHARE;
                bail!(
                    "{} of {} metrics of {new} are under {percent} % of those of {old}",
                    failed.len(),
                    checks.len()
                );
            }
            writeln!(out, "{new} may take the place of {old}: all {} metrics hold", checks.len())?;
            Ok(())
        })
    }
}
