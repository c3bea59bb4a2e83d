//! `clearshot config`: prints the resolved configuration of a training run, and the origin of each value.

use anyhow::Result;
use clap::Args;
use clearshot_config::{compose, group_reference, schema_reference};
use clearshot_train::config::schema;
use clearshot_train::elsewhere::understand;
use clearshot_train::{RunConfig, presets};
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct Config {
    /// Resolve these configuration files and changes, as for `train`: experiment=NAME, GROUP=OPTION, KEY=VALUE, or FILE.yaml.
    #[arg(value_name = "FILE.yaml|KEY=VALUE")]
    changes: Vec<String>,
    /// Look for configuration groups in this folder before the built-in ones. Default: none.
    #[arg(long, value_name = "FOLDER", visible_alias = "config-dir")]
    configs: Option<PathBuf>,
    /// Leave out where each value was set. Default: it is printed as a comment.
    #[arg(long)]
    plain: bool,
    /// Print JSON, without the places where values were set. Default: YAML.
    #[arg(long, conflicts_with = "plain")]
    json: bool,
    /// Print every key with its default and meaning, and every group with its options, as Markdown.
    #[arg(long, conflicts_with_all = ["plain", "json"])]
    reference: bool,
}

impl Config {
    pub fn run(self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if self.reference {
            write!(out, "{}", reference()?)?;
            return Ok(());
        }
        let tree = compose(
            &presets::groups(self.configs.as_deref())?,
            "train",
            &understand(&self.changes)?.overrides,
        )?;
        let run: RunConfig = tree.read()?;
        run.check()?;
        let full = serde_json::to_value(&run)?;
        if self.json {
            writeln!(out, "{}", serde_json::to_string_pretty(&full)?)?;
            return Ok(());
        }
        let resolved = tree.resolved(&full);
        let text = if self.plain { resolved.yaml() } else { resolved.yaml_with_origins() };
        Ok(write!(out, "{text}")?)
    }
}

fn reference() -> Result<String> {
    let defaults = serde_json::to_value(RunConfig::default())?;
    let keys = schema_reference(&schema(), &defaults);
    let groups = group_reference(&presets::groups(None)?)?;
    Ok(format!(
        "# Configuration of training\n\nMade by `clearshot config --reference`; `clearshot config [KEY=VALUE ...]` prints the resolved configuration of a run.\n\n## Keys\n\n{keys}\n{groups}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CLEARSHOT_BLESS=1` writes the file again.
    #[test]
    fn the_reference_is_that_of_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");
        let now = reference().expect("a reference");
        if std::env::var_os("CLEARSHOT_BLESS").is_some() {
            std::fs::write(path, &now).expect("docs/reference can be written");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == now,
            "docs/reference/config.md is stale: CLEARSHOT_BLESS=1 cargo test -p clearshot-cli writes it again"
        );
    }
}
