//! `clearshot validate`: tests whether a new model may replace the old one.

use crate::evaluating::{Judgement, Settings};
use anyhow::{Result, bail};
use clap::Args;
use clearshot_evaluate::gate::{SHARE, compare};
use serde_json::json;

#[derive(Args)]
pub struct Validate {
    /// Compare with this model in use, or a method by name.
    old: String,
    /// Check this model, which may replace the other.
    new: String,
    #[command(flatten)]
    settings: Settings,
}

impl Validate {
    pub fn run(self) -> Result<()> {
        if self.old == self.new {
            bail!("{} cannot be compared with itself; name two models", self.old);
        }
        self.settings.check_one_setting()?;
        let methods = [self.old.clone(), self.new.clone()];
        let title = format!("{} in place of {}", self.new, self.old);
        self.settings.evaluated(&title, &methods, &|made| {
            let (old, new) = (&made.methods[0], &made.methods[1]);
            let checks = compare(&made.summary, old, &made.summary, new)?;
            let failed: Vec<_> = checks.iter().filter(|c| !c.passes).collect();
            let record = json!({ "old": old, "new": new, "passes": failed.is_empty(), "checks": checks });
            let mut text: String = failed
                .iter()
                .map(|c| format!("{}, {}: {:.4}, was {:.4}\n", c.metric, c.place, c.new, c.old))
                .collect();
            let refusal = (!failed.is_empty()).then(|| {
                let (percent, all) = (100.0 * SHARE, checks.len());
                format!("{} of {all} metrics of {new} are under {percent} % of those of {old}", failed.len())
            });
            if refusal.is_none() {
                text += &format!("{new} may replace {old}: all {} metrics pass\n", checks.len());
            }
            Ok(Some(Judgement { record, text, refusal }))
        })
    }
}
