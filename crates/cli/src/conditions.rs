//! Options for the conditions of a model other than the measurement.

use anyhow::{Result, bail};
use clap::Args;
use clearshot::{Context, TakenByGiven};
use std::path::PathBuf;

#[derive(Args)]
pub struct ConditionArgs {
    /// Set the class of the images, by name or number, for a model that is conditioned on classes; `info MODEL` lists them. Default: none, which only
    /// models trained with task.drop_class accept.
    #[arg(long, value_name = "NAME|N")]
    pub class: Option<String>,
    /// Set the context, for a model with cross-attention to one: an array of [vectors, numbers], as in FILE.npy. Default: none, as for --class.
    #[arg(long, value_name = "FILE.npy")]
    context: Option<PathBuf>,
    /// Override a number of the camera, in electrons, for a model that is conditioned on it: scale=500, read-noise=2 or background=10. May be given
    /// several times. Default: from the camera and the image.
    #[arg(long, value_name = "KEY=VALUE")]
    condition: Vec<String>,
}

impl ConditionArgs {
    /// The context that is given.
    pub fn context(&self) -> Result<Option<Context>> {
        Ok(self.context.as_deref().map(Context::read).transpose()?)
    }

    /// The numbers of the camera that are given.
    pub fn taken_by(&self) -> Result<TakenByGiven> {
        let mut given = TakenByGiven::default();
        for text in &self.condition {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            let slot = match key.replace('_', "-").as_str() {
                "scale" => &mut given.scale,
                "read-noise" => &mut given.read_noise,
                "background" => &mut given.background,
                _ => bail!(
                    "--condition {text}: unknown key `{key}`; use scale, read-noise or background, as in scale=500"
                ),
            };
            match value.parse() {
                Ok(number) => *slot = Some(number),
                Err(_) => bail!("--condition {text}: a number of electrons is needed, as in {key}=5"),
            }
        }
        Ok(given)
    }
}
