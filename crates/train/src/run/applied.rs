//! The settings in effect: each setting as used by the compiled session, the loader and the device, which may differ from
//! the configuration.

use super::Run;
use super::save::write_settings;
use crate::config::CompileMode;
use crate::error::Result;
use clearshot_graph::plan::human;
use clearshot_runtime::Device;
use serde::Serialize;
use serde_json::{Value as Json, json};

/// One setting, and the reason if it was not chosen by the user.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Applied {
    pub key: &'static str,
    pub value: Json,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: &'static str,
}

impl Run<'_> {
    /// All of them, of the present stage.
    pub fn applied(&self) -> Vec<Applied> {
        let work = self.working();
        let (session, feed) = (work.engine.session(), &work.feed);
        let threads = match session.device() {
            Device::Cpu { threads, .. } => json!(threads),
            Device::Cuda { .. } => Json::Null,
        };
        let mode = self.config.model.compile_mode;
        let row = |key, value: Json| Applied { key, value, why: "" };
        let always = |key, why| Applied { key, value: true.into(), why };
        let backend = self.ranks.backend().map(|name| row("distributed.backend", name.into()));
        let mut all = vec![
            row("trainer.device", session.device().to_string().into()),
            row("trainer.batch", work.images.into()),
            row("trainer.accumulate", self.config.trainer.accumulate.into()),
            row("performance.precision", session.arithmetic().name().into()),
            row("performance.threads", threads),
            row("performance.workers", feed.threads().into()),
            row("performance.ahead", feed.ahead().into()),
            row("performance.budget", self.config.performance.budget.clone().into()),
            row("model.compile_mode", serde_json::to_value(mode).unwrap_or_default()),
            row("fused operations", (mode != CompileMode::None).into()),
            row("planned memory", human(self.planned_bytes()).into()),
            always("channels last", "images are stored with their channels last"),
            always("fused optimiser", "one launch updates all parameters"),
            always("persistent workers", "loader threads live as long as the run"),
            always("pinned memory", "batches travel from page-locked memory wherever there is a GPU"),
        ];
        all.extend(backend);
        all
    }

    /// The settings as a table, which is also written to `settings.json` in the run's folder.
    pub(super) fn write_applied(&self) -> Result<()> {
        write_settings(&self.out, &self.applied())
    }

    /// The settings for people.
    pub(super) fn applied_in_words(&self) -> String {
        let line = |a: &Applied| {
            let value = match &a.value {
                Json::Null => "-".to_string(),
                Json::Bool(true) if !a.why.is_empty() => "always".to_string(),
                Json::String(text) => text.clone(),
                other => other.to_string(),
            };
            let why = if a.why.is_empty() { String::new() } else { format!("  {}", a.why) };
            format!("  {:<22} {value}{why}", a.key)
        };
        self.applied().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
