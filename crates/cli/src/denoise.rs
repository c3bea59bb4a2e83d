//! `clearshot denoise`: image files without their noise, by a method that needs no training.

use crate::restoring::Files;
use anyhow::{Result, bail};
use clap::Args;
use clearshot_physics::Electrons;
use clearshot_restore::classical::{Method, stabilised};

#[derive(Args)]
pub struct Denoise {
    #[command(flatten)]
    files: Files,
    /// gaussian, median, wiener, nlm, tv or bm3d.
    #[arg(long, default_value = "bm3d")]
    method: String,
    /// The standard deviation of the noise, where it is the same everywhere, in the file's unit.
    #[arg(long, conflicts_with_all = ["gain", "offset", "read_noise"])]
    noise: Option<f32>,
    /// Electrons per count: the noise is a camera's, and the generalised Anscombe transform makes it uniform.
    #[arg(long)]
    gain: Option<f32>,
    /// Counts without light.
    #[arg(long, default_value_t = 0.0)]
    offset: f32,
    /// The standard deviation of the read noise in electrons.
    #[arg(long, default_value_t = 0.0)]
    read_noise: f32,
}

impl Denoise {
    pub fn run(self) -> Result<()> {
        let method = Method::by_name(&self.method)?;
        let (gain, offset, read_noise) = (self.gain, self.offset, self.read_noise);
        if let Some(g) = gain.filter(|g| !(g.is_finite() && *g > 0.0)) {
            bail!("--gain {g}: electrons per count are a number above zero");
        }
        let noise = match (self.noise, &method) {
            (Some(sigma), _) => sigma,
            (None, Method::Gaussian(_) | Method::Median(_)) => 0.0,
            (None, _) if gain.is_some() => 1.0,
            (None, _) => bail!(
                "say how noisy the images are: --noise SIGMA in their unit, or a camera's --gain, --offset and --read-noise"
            ),
        };
        let parameters = serde_json::json!({
            "method": self.method, "noise": self.noise, "gain": gain, "offset": offset, "read_noise": read_noise,
        });
        self.files.each("denoise", &parameters, &mut |values, shape| {
            let Some(gain) = gain else { return Ok(method.run(values, shape, noise)?) };
            let electrons: Vec<f32> = values.iter().map(|v| gain * (v - offset)).collect();
            let clean = stabilised(&method, Electrons(&electrons), shape, Electrons(read_noise))?.0;
            Ok(clean.iter().map(|v| v / gain + offset).collect())
        })
    }
}
