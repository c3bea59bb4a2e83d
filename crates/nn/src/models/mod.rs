//! Networks, one file each, and the table of them.
//!
//! A network is a configuration, which resolves to a checked description, which is a [`Network`]: parameters, inference and
//! training follow from that. [`ARCHITECTURES`] is the list used by help texts, the command line and tests; to add a
//! network, add a file and a row.

pub mod conditioned;
pub mod config;
pub mod discriminator;
pub mod dncnn;
pub mod dynunet;
pub mod edm;
pub mod enlarged;
pub mod growing;
pub mod local;
mod modulation;
pub mod multiscale;
pub mod n2v;
pub mod named;
pub mod network;
pub mod preconditioned;
pub mod quantised;
pub mod rosinality;
pub mod unet2d;
pub mod unet2d_condition;
pub mod vit;

pub use network::{Answer, ERROR, ERROR_SHARE, Given, LEAST_ERROR, Learning, Network, Port};
pub use preconditioned::Preconditioned;
pub use quantised::Quantised;

use crate::Error;
use conditioned::ConditionedConfig;
use dncnn::DnCnnConfig;
use dynunet::DynUNetConfig;
use edm::EdmConfig;
use enlarged::EnlargedConfig;
use growing::GrowingConfig;
use local::LocalConfig;
use multiscale::MultiScaleConfig;
use n2v::N2vConfig;
use rosinality::RosinalityConfig;
use serde_json::{Map, Value as Json};
use unet2d::UNet2DConfig;
use unet2d_condition::UNet2DConditionConfig;
use vit::jepa::JepaConfig;
use vit::mae::MaeConfig;
use vit::segmentation::VitSegmentationConfig;

/// The network that a configuration means, or what is wrong with it.
pub type Read = fn(Map<String, Json>) -> Result<Box<dyn Network>, Error>;

/// A kind of network.
pub struct Architecture {
    /// What `_class_name` in a configuration says.
    pub name: &'static str,
    pub about: &'static str,
    pub read: Read,
}

/// Every kind of network.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: unet2d::CLASS_NAME,
        about: "diffusers' UNet with self-attention",
        read: |map| Ok(Box::new(UNet2DConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: unet2d_condition::CLASS_NAME,
        about: "diffusers' UNet with attention to a context, and vector conditioning",
        read: |map| Ok(Box::new(UNet2DConditionConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: conditioned::CLASS_NAME,
        about: "a UNet2DConditionModel that is given the measurement as channels, by attention or as a vector",
        read: |map| Ok(Box::new(ConditionedConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "RosinalityUNet",
        about: "Rosinality's UNet, with affine time and folding",
        read: |map| Ok(Box::new(RosinalityConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "EDM",
        about: "EDM's denoisers: DDPM++, NCSN++ and ADM under VP, VE, iDDPM and EDM preconditioning",
        read: |map| Ok(Box::new(EdmConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "DynUNet",
        about: "MONAI's DynUNet in 2-D and 3-D",
        read: |map| Ok(Box::new(DynUNetConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "MultiScale",
        about: "one set of weights over a pyramid, in 2-D and 3-D, with vector conditioning",
        read: |map| Ok(Box::new(MultiScaleConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "Growing",
        about: "a network that grows from resolution to resolution, blended in, with vector conditioning",
        read: |map| Ok(Box::new(GrowingConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "Local",
        about: "a UNet without norms and attention, exact on tiles, in 2-D and 3-D, with vector conditioning",
        read: |map| Ok(Box::new(LocalConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "DnCNN",
        about: "DnCNN, a chain of convolutions that predicts the noise, in 2-D and 3-D",
        read: |map| Ok(Box::new(DnCnnConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "N2VUNet",
        about: "the U-Net of Noise2Void and N2V2, in 2-D and 3-D",
        read: |map| Ok(Box::new(N2vConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: enlarged::CLASS_NAME,
        about: "another network and a head on a finer grid, for super-resolution",
        read: |map| Ok(Box::new(EnlargedConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "MAE",
        about: "a masked autoencoder on a vision transformer, in 2-D and 3-D",
        read: |map| Ok(Box::new(MaeConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "JEPA",
        about: "the encoder and predictor of I-JEPA and IWM on a vision transformer, in 2-D and 3-D",
        read: |map| Ok(Box::new(JepaConfig::from_map(map)?.resolve()?)),
    },
    Architecture {
        name: "VitSegmentation",
        about: "a vision transformer's encoder with a convolutional decoder, in 2-D and 3-D",
        read: |map| Ok(Box::new(VitSegmentationConfig::from_map(map)?.resolve()?)),
    },
];

/// The architecture of this name.
pub fn architecture(name: &str) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.name == name)
}

/// The network that a `config.json` means: of the architecture that its `_class_name` says, a UNet2DModel
/// where it says none.
///
/// # Errors
/// If there is no such architecture, or the configuration is not one of its.
pub fn read(text: &str) -> Result<Box<dyn Network>, Error> {
    let map = config::object(text)?;
    let name = match map.get("_class_name") {
        None => unet2d::CLASS_NAME,
        Some(Json::String(name)) => name,
        Some(other) => {
            return Err(Error::Kind { key: "_class_name".into(), reason: format!("{other} is no text") });
        }
    };
    match architecture(name) {
        Some(architecture) => (architecture.read)(map),
        None => {
            let known: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
            Err(config::unsupported("_class_name", format!("`{name}`"), &known.join(", ")))
        }
    }
}
