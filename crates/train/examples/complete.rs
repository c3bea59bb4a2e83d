//! Completes what a model's file says of itself: what its training images are like, from the configuration that it was
//! trained by, for models that were trained before they kept it; and a factor on its samples' spread, if one is given. The
//! weights stay as they are.
//!
//! `cargo run --release -p clearshot-train --example complete -- models/default.clearshot 0.88`

use clearshot_model::Model;
use clearshot_tensor::DType;
use clearshot_train::data::{Data, familiar};
use clearshot_train::{RunConfig, presets};
use std::path::PathBuf;

/// Images of each kind.
const OF_A_KIND: usize = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("a model's file is needed")?);
    let mut model = Model::load(&path)?;
    let before = model.hash();
    let training = &model.about.training;
    let config: RunConfig = match training["experiment"].as_str() {
        Some(name) => {
            presets::read(None, &[format!("experiment={name}"), format!("seed={}", training["seed"])])?
        }
        None => serde_json::from_value(training["config"].clone())?,
    };
    if let Some(text) = std::env::args().nth(2) {
        model.about.spread = Some(text.parse()?);
    }
    let size = model.about.crop.clone();
    model.about.familiar = familiar(&Data::new(&config)?, &size, OF_A_KIND)?;
    if model.about.familiar.is_none() {
        return Err("nothing can be told of its training images".into());
    }
    // Half precision where the file was written so: it then holds the same numbers again.
    model.save_file(&path, DType::F16)?;
    if Model::load(&path)?.hash() != before {
        model.save_file(&path, DType::F32)?;
    }
    println!("{}: {} bytes, weights {before}", path.display(), std::fs::metadata(&path)?.len());
    Ok(())
}
