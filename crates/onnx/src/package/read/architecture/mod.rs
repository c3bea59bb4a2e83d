//! Networks of packages whose weights are a PyTorch state dict, by the name of their architecture.
//!
//! Such a package names the class of its weights, in a library or in a file beside them, and the arguments of that class.
//! That code is never run: if the class is one that this program builds itself ([`KNOWN`]), the network is built from the
//! arguments and gets the weights if all names and shapes match. A class in a file of the package may be anything, whatever
//! its name, so such a package must have a test, which is run before it is used.

mod careamics;

use crate::import::{Imported, ImportedPort};
use careamics::CareamicsConfig;
use clearshot_nn::models::{self, ARCHITECTURES, Network};
use clearshot_nn::{Weights, weights};
use clearshot_tensor::store::Store;
use clearshot_tensor::{DType, Tensor};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;

/// What a package says of its network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Architecture {
    /// The module that its class is imported from, or the file that has it.
    place: Place,
    class: String,
    arguments: Map<String, Json>,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Module(String),
    File(String),
}

/// Makes a network of the arguments of a class.
type Make = fn(Map<String, Json>) -> Result<Box<dyn Network>, String>;

/// A class of a library that is built here.
struct Known {
    modules: &'static [&'static str],
    classes: &'static [&'static str],
    make: Make,
}

/// The classes that are built here, beside this program's own.
const KNOWN: &[Known] = &[
    Known {
        modules: &["monai.networks.nets", "monai.networks.nets.dynunet"],
        classes: &["DynUNet", "DynUnet", "Dynunet"],
        make: |arguments| own("DynUNet", arguments),
    },
    Known {
        modules: &["careamics.models.unet", "careamics.models"],
        classes: &["UNet"],
        make: |arguments| Ok(Box::new(CareamicsConfig::of(arguments)?)),
    },
    Known { modules: &["models.network_dncnn"], classes: &["DnCNN"], make: kair },
];

/// The module name of this program's own networks.
const OWN: &str = "clearshot";

fn own(class: &str, arguments: Map<String, Json>) -> Result<Box<dyn Network>, String> {
    let known =
        models::architecture(class).ok_or_else(|| format!("`{class}` is not a network of Clearshot"))?;
    (known.read)(arguments).map_err(|e| e.to_string())
}

/// KAIR's DnCNN: its arguments by our names.
fn kair(arguments: Map<String, Json>) -> Result<Box<dyn Network>, String> {
    let names = [("in_nc", "in_channels"), ("out_nc", "out_channels"), ("nc", "channels"), ("nb", "layers")];
    let mut ours = Map::new();
    // The defaults of the class.
    ours.insert("norm".into(), json!("batch"));
    for (name, value) in arguments {
        match (names.iter().find(|(theirs, _)| *theirs == name), value.as_str()) {
            (Some((_, own)), _) => drop(ours.insert((*own).into(), value)),
            (None, Some("BR")) if name == "act_mode" => drop(ours.insert("norm".into(), json!("batch"))),
            (None, Some("R")) if name == "act_mode" => drop(ours.insert("norm".into(), json!("none"))),
            _ => {
                return Err(format!(
                    "{name}: {value}; in_nc, out_nc, nc, nb and act_mode (BR or R) are read"
                ));
            }
        }
    }
    own("DnCNN", ours)
}

impl Architecture {
    /// The entry `pytorch_state_dict` of a description's weights, in format 0.5 and 0.4.
    pub fn of(entry: &Json) -> Result<Architecture, String> {
        let told = &entry["architecture"];
        let arguments = |value: &Json| match value {
            Json::Null => Ok(Map::new()),
            Json::Object(map) => Ok(map.clone()),
            other => Err(format!("the arguments of its architecture are {other}")),
        };
        let text = |key: &str| told[key].as_str().map(str::to_string);
        if let Some(path) = told.as_str() {
            let missing = || format!("its architecture is `{path}`, without a class");
            let (place, class) = match path.rsplit_once(':') {
                Some((file, class)) => (Place::File(file.into()), class),
                None => path
                    .rsplit_once('.')
                    .map(|(module, class)| (Place::Module(module.into()), class))
                    .ok_or_else(missing)?,
            };
            return Ok(Architecture { place, class: class.into(), arguments: arguments(&entry["kwargs"])? });
        }
        let place = match (text("import_from"), text("source")) {
            (Some(module), _) => Place::Module(module),
            (None, Some(file)) => Place::File(file),
            (None, None) => return Err("pytorch_state_dict: its architecture is missing".into()),
        };
        let class = text("callable").ok_or("pytorch_state_dict: its architecture has no callable")?;
        Ok(Architecture { place, class, arguments: arguments(&told["kwargs"])? })
    }

    /// Whether its class lies in a file, where only the package's test can show that it is the one of this name.
    pub fn is_in_a_file(&self) -> bool {
        matches!(self.place, Place::File(_))
    }

    pub fn name(&self) -> String {
        match &self.place {
            Place::Module(module) => format!("`{}` of {module}", self.class),
            Place::File(file) => format!("`{}` in {file}", self.class),
        }
    }

    /// The network.
    ///
    /// # Errors
    /// If it is not known, or its arguments are not supported.
    fn network(&self) -> Result<Box<dyn Network>, String> {
        let class = self.class.as_str();
        let is_here = |known: &&Known| {
            let is_module = match &self.place {
                Place::Module(module) => known.modules.contains(&module.as_str()),
                Place::File(_) => true,
            };
            is_module && known.classes.contains(&class)
        };
        let is_own = self.place == Place::Module(OWN.into()) && models::architecture(class).is_some();
        let made = match KNOWN.iter().find(is_here) {
            Some(known) => (known.make)(self.arguments.clone()),
            None if is_own => own(class, self.arguments.clone()),
            None => return Err(self.unknown()),
        };
        let network = made.map_err(|why| format!("architecture {}: {why}", self.name()))?;
        let size = network.example_size();
        let image: Vec<usize> = [1].into_iter().chain(size).chain([network.in_channels()]).collect();
        let ports = network.ports(clearshot_tensor::Shape::new(&image));
        match ports.iter().find(|p| !p.optional) {
            None => Ok(network),
            Some(port) => Err(format!(
                "architecture {} takes `{}` beside the image; a package's network is given an image alone",
                self.name(),
                port.name
            )),
        }
    }

    fn unknown(&self) -> String {
        let known: Vec<String> =
            KNOWN.iter().map(|k| format!("{} of {}", k.classes[0], k.modules[0])).collect();
        let ours: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
        format!(
            "its weights are a state of PyTorch for the architecture {}, which is not known here, and code of packages is not run. Known are {}, and of {OWN} {}. \
             Ask its authors for weights in ONNX, or write them with `torch.onnx.export`",
            self.name(),
            known.join(", "),
            ours.join(", ")
        )
    }

    /// Names that this class has in its states and never computes with.
    fn is_idle(&self, name: &str) -> bool {
        let has_norms = self.arguments.get("use_batch_norm") != Some(&Json::Bool(false));
        name.ends_with(".num_batches_tracked") || (!has_norms && name.contains(".batch_norm"))
    }
}

/// A network that was built here, with the weights of a package.
pub struct StateNetwork {
    network: Box<dyn Network>,
    weights: Weights,
}

/// The names of its input and output.
const PORTS: [&str; 2] = ["x", "y"];

impl StateNetwork {
    /// # Errors
    /// If the architecture is not known, or the weights are not its.
    pub(super) fn of(architecture: &Architecture, file: &str, bytes: &[u8]) -> Result<StateNetwork, String> {
        let network = architecture.network()?;
        let params =
            network.parameters().map_err(|e| format!("architecture {}: {e}", architecture.name()))?;
        let store = Store::parse(bytes, Path::new(file)).map_err(|e| e.to_string())?;
        let tensors: BTreeMap<String, Tensor> =
            store.tensors.into_iter().filter(|(name, _)| !architecture.is_idle(name)).collect();
        let weights = weights::from_torch(tensors, &params)
            .map_err(|e| format!("{file} does not fit the architecture {}: {e}", architecture.name()))?;
        Ok(StateNetwork { network, weights })
    }

    pub(super) fn dims(&self) -> usize {
        self.network.dims()
    }

    /// The network for images of a size, (Z,) Y, X.
    ///
    /// # Errors
    /// If it does not take them.
    pub(super) fn import(&self, samples: usize, size: &[usize]) -> Result<Imported, String> {
        if size.len() != self.dims() {
            return Err(format!("a network of {} axes for images of sizes {size:?}", self.dims()));
        }
        self.network.check_size(size)?;
        let graph = self.network.inference(samples, size).map_err(|e| e.to_string())?;
        let made = graph.outputs.iter().find(|o| &*o.name == PORTS[1]).map(|o| graph.shape(o.value).to_vec());
        let made = made.ok_or("it has no output")?;
        let port =
            |name: &str, sizes: Vec<usize>| ImportedPort { name: name.into(), dtype: DType::F32, sizes };
        let sizes = |channels: usize, size: &[usize]| {
            [samples, channels].into_iter().chain(size.iter().copied()).collect::<Vec<_>>()
        };
        let channels = *made.last().ok_or("it has no output")?;
        Ok(Imported {
            inputs: vec![port(PORTS[0], sizes(self.network.in_channels(), size))],
            outputs: vec![port(PORTS[1], sizes(channels, &made[1..made.len() - 1]))],
            graph,
            weights: self.weights.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entry: Json) -> Architecture {
        Architecture::of(&entry).unwrap()
    }

    #[test]
    fn both_formats_name_a_class_and_its_place() {
        let new = json!({"architecture": {"import_from": "monai.networks.nets", "callable": "DynUNet", "kwargs": {"filters": [8, 8, 8]}}});
        let old = json!({"architecture": "monai.networks.nets.DynUNet", "kwargs": {"filters": [8, 8, 8]}});
        assert_eq!(of(new.clone()), of(old));
        assert!(of(new).network().is_ok());
        let file = of(json!({"architecture": "nets/unet.py:UNet2d"}));
        assert!(file.is_in_a_file() && file.name() == "`UNet2d` in nets/unet.py");
        assert_eq!(file, of(json!({"architecture": {"source": "nets/unet.py", "callable": "UNet2d"}})));
        for wrong in [json!({}), json!({"architecture": "UNet"}), json!({"architecture": {"source": "a.py"}})]
        {
            assert!(Architecture::of(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_keys_are_named_with_advice() {
        let why = |entry: Json| of(entry).network().unwrap_err();
        let unknown = why(json!({"architecture": "unet.py:UNet2d"}));
        assert!(
            unknown.contains("`UNet2d` in unet.py") && unknown.contains("torch.onnx.export"),
            "{unknown}"
        );
        // A class of this name in another library is another one.
        assert!(why(json!({"architecture": "segmentation.UNet"})).contains("`UNet` of segmentation"));
        let timed = json!({"architecture": "clearshot.UNet2DModel", "kwargs": {"in_channels": 1, "out_channels": 1, "block_out_channels": [32],
            "down_block_types": ["DownBlock2D"], "up_block_types": ["UpBlock2D"]}});
        assert!(why(timed).contains("beside the image"));
        let bad = json!({"architecture": "monai.networks.nets.DynUNet", "kwargs": {"strides": 7}});
        assert!(why(bad).contains("strides"));
        assert!(
            why(json!({"architecture": "models.network_dncnn.DnCNN", "kwargs": {"act_mode": "BL"}}))
                .contains("act_mode")
        );
    }
}
