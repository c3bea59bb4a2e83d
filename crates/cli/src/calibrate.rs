//! `clearshot calibrate`: calibrates the uncertainty of models whose training did not include it.

use crate::progress::Line;
use anyhow::{Context, Result, bail};
use clap::Args;
use clearshot_model::Model;
use clearshot_restore::learned::Error;
use clearshot_runtime::DeviceName;
use clearshot_tensor::DType;
use clearshot_train::calibration::{calibrate, data_of, needless};
use clearshot_train::config::CalibrationConfig;
use clearshot_train::data::{Data, familiar};
use std::path::PathBuf;

/// Images of each kind that a model's idea of its training images comes from.
const OF_A_KIND: usize = 400;

#[derive(Args)]
pub struct Calibrate {
    /// A model's file.
    #[arg(value_name = "NAME.clearshot")]
    model: PathBuf,
    /// Write the model here. Default: in place.
    #[arg(long, short, alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Images that are restored for it: scenes or files as in its training, other ones.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..))]
    images: u16,
    /// Set the side of the images in pixels; several numbers are used in turn. Default: as in its training.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    size: Vec<u16>,
    /// Seed the images. Default: that of its training.
    #[arg(long)]
    seed: Option<u64>,
    /// Samples of each image.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..))]
    samples: u16,
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// What to run on: cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Threads of the CPU.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// One JSON object instead of a sentence.
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    pub fn run(self) -> Result<()> {
        if self.model.is_dir() {
            bail!("{} is a folder; a model's file NAME.clearshot is needed", self.model.display());
        }
        let mut model = Model::load(&self.model)?;
        let mut config = data_of(&model)?;
        if let Some(why) = needless(&config) {
            bail!("{}: there is no spread to calibrate: {why}", self.model.display());
        }
        let out = self.out.as_ref().unwrap_or(&self.model);
        // What takes minutes is not begun where its result could not be kept.
        let aside = out.with_extension(format!("{}.part", std::process::id()));
        let kept = std::fs::File::create_new(&aside).and_then(|_| std::fs::remove_file(&aside));
        kept.with_context(|| format!("{}: nothing can be written there", out.display()))?;
        if let Some(seed) = self.seed {
            config.seed = seed;
        }
        let trained = model.about.crop.clone();
        if model.about.familiar.is_none() {
            model.about.familiar = familiar(&Data::new(&data_of(&model)?)?, &trained, OF_A_KIND)?;
        }
        let mut sizes: Vec<Vec<usize>> = Vec::new();
        for side in &self.size {
            let mut size = trained.clone();
            size.iter_mut().rev().take(2).for_each(|n| *n = usize::from(*side));
            sizes.push(size);
        }
        if sizes.is_empty() {
            sizes.push(trained);
        }
        let [images, samples, steps] = [self.images, self.samples, self.steps].map(usize::from);
        let (how, device) = (
            CalibrationConfig { images, samples, steps },
            self.device.device(self.threads.map(usize::from))?,
        );
        let mut line = Line::new("calibrating".into());
        let mut told = |done: usize| -> Result<(), Error> {
            line.show(done, images);
            Ok(())
        };
        let data = Data::new(&config)?;
        let (model, found) = calibrate(model, &data, &sizes, &how, device, &mut told)?;
        line.end();
        let Some(found) = found else { bail!("no image has a spread; nothing was written") };
        // Half precision where the file was written so: it then holds the same numbers again.
        let is_half = model.weights.values().all(|w| w.to_f16().to_f64() == w.to_f64());
        model.save_file(out, if is_half { DType::F16 } else { DType::F32 })?;
        if self.json {
            let record = serde_json::json!({
                "model": out, "images": images, "samples": samples, "steps": steps, "nominal": 0.9, "before": found.before,
                "after": found.after,
            });
            println!("{record}");
            return Ok(());
        }
        println!(
            "{}: 90 % intervals held {:.1} % of truths, and hold {:.1} % now (found on one half of {images} images, counted \
             on the other); the weights are as before",
            out.display(),
            100.0 * found.before,
            100.0 * found.after,
        );
        Ok(())
    }
}
