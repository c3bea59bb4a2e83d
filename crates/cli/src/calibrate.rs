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
    /// Calibrate this model file.
    #[arg(value_name = "NAME.clearshot")]
    model: PathBuf,
    /// Write the calibrated model to this file. Default: the model file is replaced.
    #[arg(long, short, alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Restore this many images for it: scenes or files like those of its training, but not the same.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(2..))]
    images: u16,
    /// Set the side of the images in pixels; several numbers are used in turn. Default: as in its training.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    size: Vec<u16>,
    /// Seed the images. Default: that of its training.
    #[arg(long)]
    seed: Option<u64>,
    /// Draw this many samples of each image.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..))]
    samples: u16,
    /// Draw each sample in this many steps.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
    steps: u16,
    /// Run on cpu, cuda (the first GPU), cuda:N, or auto (a GPU if there is one).
    #[arg(long, default_value = "auto")]
    device: DeviceName,
    /// Use this many CPU threads. Default: one for each core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object. Default: text.
    #[arg(long)]
    json: bool,
}

impl Calibrate {
    pub fn run(self) -> Result<()> {
        if self.model.is_dir() {
            bail!("{} is a folder; give a model file, NAME.clearshot", self.model.display());
        }
        let mut model = Model::load(&self.model)?;
        let mut config = data_of(&model)?;
        if let Some(why) = needless(&config) {
            bail!("{}: this model has no uncertainty to calibrate: {why}", self.model.display());
        }
        let out = self.out.as_ref().unwrap_or(&self.model);
        // What takes minutes is not begun where its result could not be kept.
        let aside = out.with_extension(format!("{}.part", std::process::id()));
        let kept = std::fs::File::create_new(&aside).and_then(|_| std::fs::remove_file(&aside));
        kept.with_context(|| format!("{}: cannot be written", out.display()))?;
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
        let Some(found) = found else {
            bail!("no image has an uncertainty to calibrate; nothing was written")
        };
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
            "{}: 90 % intervals contained the truth {:.1} % of the time before calibration and {:.1} % after it (fitted on one half of {images} images, \
             measured on the other); the weights are unchanged",
            out.display(),
            100.0 * found.before,
            100.0 * found.after,
        );
        Ok(())
    }
}
