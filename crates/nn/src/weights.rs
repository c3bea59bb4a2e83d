//! Weights by name, and the folders in which diffusers keeps them: `config.json` with
//! `diffusion_pytorch_model.safetensors`, or the older `.bin`, which is read and never written.
//!
//! Files have PyTorch's layout and graphs have ours; only convolution weights differ (`[K, C, ky, kx]` and `[K, ky, kx,
//! C]`, and the same in 3-D), and they are converted here. Reading checks every name and shape and reports all errors at
//! once.

use crate::error::{Error, Misfit};
use crate::init::{Init, Param};
use crate::models::unet2d::UNet2DConfig;
use crate::models::{self, Network, dynunet};
use clearshot_tensor::store::{Store, write_whole};
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Tensors by parameter name, in our layout.
pub type Weights = BTreeMap<String, Tensor>;

pub const CONFIG_FILE: &str = "config.json";
pub const WEIGHTS_FILE: &str = "diffusion_pytorch_model.safetensors";
/// The format of diffusers before safetensors: a PyTorch checkpoint.
const OLD_WEIGHTS_FILE: &str = "diffusion_pytorch_model.bin";

/// Names of attention layers in early versions of diffusers, and now.
const RENAMED: &[(&str, &str)] =
    &[("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")];

/// Reads a network's folder.
///
/// # Errors
/// If a file is missing, damaged, of another network, or its weights are not those of its configuration.
pub fn load(folder: &Path) -> Result<(UNet2DConfig, Weights), Error> {
    let path = folder.join(CONFIG_FILE);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let config = UNet2DConfig::from_json(&text)?;
    let params = config.resolve()?.parameters()?;
    let store = Store::read(&weights_file(folder))?;
    Ok((config, from_torch(store.tensors, &params)?))
}

/// As [`load`] for any architecture: the one that `_class_name` in the configuration says.
///
/// # Errors
/// As [`load`].
pub fn load_network(folder: &Path) -> Result<(Box<dyn Network>, Weights), Error> {
    let path = folder.join(CONFIG_FILE);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let network = models::read(&text)?;
    let store = Store::read(&weights_file(folder))?;
    let weights = from_torch(store.tensors, &network.parameters()?)?;
    Ok((network, weights))
}

/// Where a folder's weights are: in safetensors where there are both.
pub fn weights_file(folder: &Path) -> PathBuf {
    let (file, old) = (folder.join(WEIGHTS_FILE), folder.join(OLD_WEIGHTS_FILE));
    if !file.exists() && old.exists() { old } else { file }
}

/// Writes the folder of a network of any architecture; the configuration is the text of a `config.json`.
///
/// # Errors
/// If there is no such network, the weights are not its, or the folder cannot be written.
pub fn save_network(folder: &Path, config: &str, weights: &Weights) -> Result<(), Error> {
    write(folder, config, weights, &models::read(config)?.parameters()?)
}

/// Writes a network's folder, which diffusers can load.
///
/// # Errors
/// If the weights are not those of the configuration, or the folder cannot be written.
pub fn save(folder: &Path, config: &UNet2DConfig, weights: &Weights) -> Result<(), Error> {
    write(folder, &config.to_json(), weights, &config.resolve()?.parameters()?)
}

fn write(folder: &Path, config: &str, weights: &Weights, params: &[Param]) -> Result<(), Error> {
    let tensors: Weights = weights.iter().map(|(name, t)| (name.clone(), t.channels_second())).collect();
    check(&tensors, params)?;
    let metadata = BTreeMap::from([("format".into(), "pt".into())]);
    let io = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Io { path, source }
    };
    std::fs::create_dir_all(folder).map_err(io(folder))?;
    Store { tensors, metadata }.write(&folder.join(WEIGHTS_FILE))?;
    let path = folder.join(CONFIG_FILE);
    write_whole(&path, config.as_bytes()).map_err(io(&path))
}

/// A network's weights from tensors in PyTorch's layout, of any float type.
///
/// # Errors
/// Names every tensor that is missing, not the network's, or of another shape.
pub fn from_torch(tensors: BTreeMap<String, Tensor>, params: &[Param]) -> Result<Weights, Error> {
    let tensors: BTreeMap<String, Tensor> = tensors
        .into_iter()
        .filter(|(name, _)| !name.starts_with(dynunet::ALIASES))
        .map(|(name, t)| (present_name(name), t))
        .collect();
    check(&tensors, params)?;
    Ok(tensors.into_iter().map(|(name, t)| (name, t.to_f32().channels_last())).collect())
}

/// Fresh weights under a seed.
pub fn initial(params: &[Param], seed: u64) -> Weights {
    params.iter().map(|p| (p.name.clone(), p.initial(seed))).collect()
}

fn present_name(name: String) -> String {
    let Some((path, last)) = name.rsplit_once('.') else { return name };
    let Some((block, layer)) = path.rsplit_once('.') else { return name };
    let attention = block.rsplit('.').nth(1) == Some("attentions");
    match RENAMED.iter().find(|(old, _)| attention && layer == *old) {
        Some((_, new)) => format!("{block}.{new}.{last}"),
        None => name,
    }
}

/// A parameter's shape in PyTorch's layout.
fn torch_shape(ours: Shape) -> Shape {
    match *ours {
        [k, y, x, c] => Shape::from([k, c, y, x]),
        [k, z, y, x, c] => Shape::from([k, c, z, y, x]),
        _ => ours,
    }
}

fn check(tensors: &BTreeMap<String, Tensor>, params: &[Param]) -> Result<(), Error> {
    let mut misfit = Misfit::default();
    let expected: BTreeMap<&str, Shape> =
        params.iter().map(|p| (p.name.as_str(), torch_shape(p.shape))).collect();
    for (name, shape) in &expected {
        match tensors.get(*name) {
            None => misfit.missing.push((name.to_string(), *shape)),
            Some(t) if t.shape() != *shape => misfit.misshapen.push((name.to_string(), *shape, t.shape())),
            Some(_) => {}
        }
    }
    for p in params {
        let held = tensors.get(&p.name).filter(|t| t.shape() == torch_shape(p.shape));
        if held.is_some_and(|t| contradicts(t, p)) {
            misfit.contradicting.push(p.name.clone());
        }
    }
    let extra = tensors.iter().filter(|(name, _)| !expected.contains_key(name.as_str()));
    misfit.extra.extend(extra.map(|(name, t)| (name.clone(), t.shape())));
    if misfit.is_empty() { Ok(()) } else { Err(Error::Weights(Box::new(misfit))) }
}

/// Whether a file's filter is another than the configuration's, which is the one that is computed with. Both are
/// symmetric, so the layouts are one.
fn contradicts(held: &Tensor, param: &Param) -> bool {
    let Init::Filter(_) = param.init else { return false };
    let (held, own) = (held.to_f64(), param.initial(0).to_f64());
    // NaN is not equal.
    !held.iter().zip(own).all(|(a, b)| (a - b).abs() < 1e-3)
}
