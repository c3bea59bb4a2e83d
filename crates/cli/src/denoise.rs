//! `clearshot denoise`: removes noise from image files with a classical method.

use crate::camera::KnownCameraArgs;
use crate::restoring::Files;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot::{Method, Restorer};
use clearshot_restore::classical::METHODS;
use std::io::Write;

#[derive(Args)]
#[command(
    override_usage = "clearshot denoise [OPTIONS] <IN>... <OUT>\n       clearshot denoise [OPTIONS] <IN>... --output <OUT>"
)]
pub struct Denoise {
    #[command(flatten)]
    files: Files,
    /// Denoise with this method: gaussian, median, wiener, nlm, tv or bm3d. `exposure` only divides the light above --offset by --set ratio=R, as a
    /// baseline for short exposures next to long ones; `none` copies the pixels.
    #[arg(long, default_value = "bm3d")]
    method: String,
    /// Change a setting of the method; `denoise --list` prints them all. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Assume noise of this standard deviation everywhere, in the file's unit. Default: camera noise, which the generalised Anscombe transform makes
    /// uniform; methods that need the noise estimate it from the image if no gain is given.
    #[arg(long, conflicts_with_all = ["gain", "offset", "read_noise", "camera"])]
    noise: Option<f32>,
    #[command(flatten)]
    camera: KnownCameraArgs,
}

impl Denoise {
    pub fn run(self) -> Result<()> {
        if self.files.list {
            return list();
        }
        let restorer = match self.method.as_str() {
            "none" if self.settings.is_empty() => Restorer::raw(),
            "none" => bail!("--set {}: the method none has no settings", self.settings[0]),
            "exposure" => Restorer::exposure(self.ratio()?),
            name => Restorer::denoiser(self.with_settings(Method::by_name(name)?)?),
        };
        let mut settings = self.files.settings(self.camera.read()?);
        settings.noise = self.noise;
        self.files.restore(&restorer, &settings)
    }

    fn with_settings(&self, mut method: Method) -> Result<Method> {
        for setting in &self.settings {
            let (key, value) =
                setting.split_once('=').with_context(|| format!("--set {setting}: KEY=VALUE is needed"))?;
            method.set(key.trim(), value.trim())?;
        }
        Ok(method)
    }

    /// How many times the light of the exposure that is wanted these files have.
    fn ratio(&self) -> Result<f32> {
        let needed =
            "the method exposure needs --set ratio=R: the exposure of these files divided by the wanted one";
        let [setting] = &self.settings[..] else { bail!("{needed}, and no other setting") };
        let Some(("ratio", value)) = setting.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            bail!("--set {setting}: {needed}");
        };
        let ratio = value.parse::<f32>().ok().filter(|r| r.is_finite() && *r > 0.0);
        ratio.with_context(|| format!("--set {setting}: a finite number above zero is needed"))
    }
}

fn list() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for row in &METHODS {
        writeln!(out, "{:<9} {}", row.name, row.about)?;
        for s in row.method.settings() {
            // As many digits as 32 bits have.
            writeln!(out, "    {:<16} {:<8} {}", s.key, s.value as f32, s.about)?;
        }
    }
    writeln!(out, "{:<9} divides the light by the ratio of exposures, nothing else", "exposure")?;
    writeln!(out, "    {:<16} {:<8} the exposure of these files divided by the wanted one", "ratio", "")?;
    writeln!(out, "{:<9} copies the pixels", "none")?;
    Ok(())
}
