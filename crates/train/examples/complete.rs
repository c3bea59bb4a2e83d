//! Completes what a model's file says of itself: what its training images are like, from the configuration that it was
//! trained by, for models that were trained before they kept it; and a factor on its intervals, if one is given. The
//! weights stay as they are.
//!
//! `cargo run --release -p clearshot-train --example complete -- models/default.clearshot 0.8`

use clearshot_model::Model;
use clearshot_tensor::DType;
use clearshot_train::RunConfig;
use clearshot_train::data::{Data, familiar};
use std::path::PathBuf;

/// Images of each kind.
const OF_A_KIND: usize = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("a model's file is needed")?);
    let mut model = Model::load(&path)?;
    let before = model.hash();
    let config: RunConfig = serde_json::from_value(model.about.training["config"].clone())?;
    if let Some(text) = std::env::args().nth(2) {
        model.about.interval = Some(text.parse()?);
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
