//! Conditions of a network in addition to the image and its measurement: the class of the image, a vector of acquisition
//! parameters, and a context, a list of vectors for cross-attention.
//!
//! The model file defines their meaning ([`Conditioning`]); the network lists which it takes ([`ConditionInput`], one for
//! each input that describes the image as a whole). Training and restoring fill the same inputs from [`Conditions`], so
//! they cannot disagree. An unknown class or context has the value used in training when it was dropped: the last row of a
//! table of classes, and zeros everywhere else.

use crate::error::ModelError;
use clearshot_graph::Type;
use clearshot_image::Image;
pub use clearshot_nn::acquisition::TakenBy;
use clearshot_nn::acquisition::{Acquisition, Code};
use clearshot_nn::models::Network;
use clearshot_tensor::{DType, Fnv1a, Shape};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What a model's file says of what it is conditioned on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditioning {
    /// The names of classes, in the order of their numbers; empty where they have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The parts of the vector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vector: Vec<VectorPart>,
    /// How many vectors the contexts of training had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// The share of training images whose class and context were dropped: above 0 both can be left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: f64,
}

fn is_zero(x: &f64) -> bool {
    *x == 0.0
}

/// A part of the vector; see [`clearshot_nn::acquisition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VectorPart {
    /// 1 at the place of the class.
    Domain,
    /// Scale, relative read noise and relative background.
    Camera,
}

impl Conditioning {
    /// The parts of a vector.
    pub fn code(&self) -> Code {
        let has = |part| self.vector.contains(&part);
        Code {
            domains: if has(VectorPart::Domain) { self.classes.len() } else { 0 },
            camera: has(VectorPart::Camera),
        }
    }
}

/// A list of vectors for attention to look at, `[tokens, width]`.
#[derive(Clone, PartialEq)]
pub struct Context {
    pub tokens: usize,
    pub width: usize,
    values: Arc<[f32]>,
}

impl Context {
    /// # Errors
    /// If the values do not fit the shape, there are none, or one is not finite.
    pub fn new([tokens, width]: [usize; 2], values: Vec<f32>) -> Result<Context, String> {
        if tokens * width == 0 || values.len() != tokens * width {
            return Err(format!("{} numbers for {tokens} vectors of {width}", values.len()));
        }
        match values.iter().position(|v| !v.is_finite()) {
            Some(at) => Err(format!("number {} of vector {} is {}", at % width, at / width, values[at])),
            None => Ok(Context { tokens, width, values: values.into() }),
        }
    }

    /// Reads a context from an array of two axes, such as a `.npy` file; axes of length 1 in front are left out.
    ///
    /// # Errors
    /// If the file cannot be read, or is not such an array.
    pub fn read(path: &Path) -> Result<Context, ModelError> {
        let wrong = |reason: String| ModelError::Context { path: path.into(), reason };
        let image = Image::open(path).map_err(|e| {
            let text = e.to_string();
            let named = format!("{}: ", path.display());
            wrong(text.strip_prefix(&named).unwrap_or(&text).into())
        })?;
        let shape = image.description.shape();
        let ones = shape.iter().take_while(|n| **n == 1).count().min(shape.len().saturating_sub(2));
        let [tokens, width] = shape[ones..] else {
            return Err(wrong(format!("it has the shape {shape:?}; [vectors, numbers of each] is needed")));
        };
        let values = image.read_f64(&image.whole()).map_err(|e| wrong(e.to_string()))?;
        Context::new([tokens, width], values.iter().map(|v| *v as f32).collect()).map_err(wrong)
    }

    /// All zeros, as training gives where it drops the context.
    pub fn nothing(tokens: usize, width: usize) -> Context {
        Context { tokens, width, values: vec![0.0; tokens * width].into() }
    }

    /// A number of its values that is the same for the same bits.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv1a::default();
        self.values.iter().for_each(|v| hash.add(&v.to_bits().to_le_bytes()));
        hash.finish()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({} x {}, {:016x})", self.tokens, self.width, self.fingerprint())
    }
}

/// Properties of the whole image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// The number of its class.
    pub class: Option<usize>,
    /// The camera and the light, on the scale that the network is given the image on.
    pub camera: Option<TakenBy>,
    pub context: Option<Context>,
}

/// The meaning of one of a network's inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputKind {
    /// The number of the class, below `rows` where there is a table of classes. Where training dropped classes, the last row stands for none.
    Class {
        rows: Option<usize>,
    },
    /// 1 at the place of the class.
    OneHot {
        width: usize,
    },
    Vector(Code),
    Context {
        width: usize,
    },
    /// One that the model's file does not explain, of so many numbers.
    Unknown {
        numbers: usize,
    },
}

/// An input of a network that is about an image as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConditionInput {
    /// The network's name for it.
    pub port: &'static str,
    pub dtype: DType,
    pub kind: InputKind,
    /// Whether it can be left unknown.
    dropped: bool,
}

/// A condition of a model that was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingCondition {
    Class,
    Camera,
    Context { width: usize },
    Unknown { port: &'static str, numbers: usize },
}

impl fmt::Display for MissingCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingCondition::Class => {
                write!(f, "the class of the image was not given, and the model is conditioned on it")
            }
            MissingCondition::Camera => {
                write!(
                    f,
                    "gain and read noise of the camera are not known, and the model is conditioned on them"
                )
            }
            MissingCondition::Context { width } => write!(
                f,
                "the context was not given, and the model is conditioned on one: a list of vectors of {width} numbers"
            ),
            MissingCondition::Unknown { port, numbers } => write!(
                f,
                "the network takes an input `{port}` of {numbers} numbers, and the model's file does not say what they mean"
            ),
        }
    }
}

impl ConditionInput {
    /// The inputs of a network; `rows` is how many classes its table has.
    pub fn of(
        network: &dyn Network,
        rows: Option<usize>,
        conditioning: Option<&Conditioning>,
    ) -> Vec<ConditionInput> {
        let sizes: Vec<usize> =
            [1].into_iter().chain(network.example_size()).chain([network.in_channels()]).collect();
        let ports = network.ports(Shape::new(&sizes)).into_iter();
        let dropped = conditioning.is_some_and(|c| c.dropped > 0.0);
        let of = |port: clearshot_nn::models::Port| {
            let Type { dtype, shape } = port.ty;
            let numbers = shape.len();
            let vector = || match conditioning.map(Conditioning::code) {
                Some(code) if code.width() > 0 => InputKind::Vector(code),
                _ => InputKind::Unknown { numbers },
            };
            let kind = match (port.name, shape.rank()) {
                ("t" | "sigma" | "alpha" | "condition", _) => return None,
                // Which patches are seen is drawn, and no property of an image.
                ("visible" | "hidden" | "order", _) => return None,
                ("class", 1) => InputKind::Class { rows: rows.filter(|_| dtype == DType::I32) },
                ("labels", _) => InputKind::OneHot { width: numbers },
                ("class" | "vector", _) => vector(),
                ("context", 3) => InputKind::Context { width: shape[2] },
                _ => InputKind::Unknown { numbers },
            };
            Some(ConditionInput { port: port.name, dtype, kind, dropped })
        };
        ports.filter(|p| !p.optional).filter_map(of).collect()
    }

    /// Its shape behind the batch, with contexts of so many vectors.
    pub fn shape(&self, tokens: usize) -> Vec<usize> {
        match self.kind {
            InputKind::Class { .. } => vec![],
            InputKind::OneHot { width } => vec![width],
            InputKind::Vector(code) => vec![code.width()],
            InputKind::Context { width } => vec![tokens, width],
            InputKind::Unknown { numbers } => vec![numbers],
        }
    }

    /// Classes that can be named, where it is about them.
    pub fn classes(&self) -> Option<usize> {
        match self.kind {
            InputKind::Class { rows: Some(rows) } => Some(rows - usize::from(self.dropped)),
            InputKind::Class { rows: None } => Some(usize::MAX),
            InputKind::OneHot { width } => Some(width),
            InputKind::Vector(code) => Some(code.domains).filter(|n| *n > 0),
            InputKind::Context { .. } | InputKind::Unknown { .. } => None,
        }
    }

    /// The number missing to fill it.
    pub fn missing(&self, of: &Conditions) -> Option<MissingCondition> {
        let no_class = self.classes().is_some() && of.class.is_none() && !self.dropped;
        match self.kind {
            InputKind::Unknown { numbers } => Some(MissingCondition::Unknown { port: self.port, numbers }),
            InputKind::Context { width } if of.context.is_none() && !self.dropped => {
                Some(MissingCondition::Context { width })
            }
            InputKind::Vector(code) if code.camera && of.camera.is_none() => Some(MissingCondition::Camera),
            _ if no_class => Some(MissingCondition::Class),
            _ => None,
        }
    }

    /// Its values for an image; `out` has as many places as its shape. What is not known is filled as where training dropped it.
    ///
    /// # Errors
    /// If there is no such class, the camera's numbers are impossible, or the context has another shape.
    pub fn fill(&self, of: &Conditions, out: &mut [f32]) -> Result<(), String> {
        out.fill(0.0);
        let limit = self.classes();
        if let (Some(class), Some(limit)) = (of.class, limit)
            && class >= limit
        {
            return Err(format!("class {class}; there are {limit}, counted from 0"));
        }
        match self.kind {
            InputKind::Class { rows } => {
                let none = rows.map_or(0, |rows| rows - 1);
                out[0] = of.class.unwrap_or(none) as f32;
            }
            InputKind::OneHot { .. } => of.class.into_iter().for_each(|class| out[class] = 1.0),
            InputKind::Vector(code) => {
                let taken = Acquisition { domain: of.class, camera: of.camera };
                let values = code.encode(&taken).map_err(|e| e.to_string())?;
                out.iter_mut().zip(values).for_each(|(to, v)| *to = v as f32);
            }
            InputKind::Context { width } => {
                if let Some(context) = &of.context {
                    if context.width != width || context.values.len() != out.len() {
                        let (tokens, got) = (out.len() / width, [context.tokens, context.width]);
                        return Err(format!(
                            "a context of {} x {} numbers; {tokens} x {width} are needed",
                            got[0], got[1]
                        ));
                    }
                    out.copy_from_slice(&context.values);
                }
            }
            InputKind::Unknown { .. } => {}
        }
        Ok(())
    }

    /// Of its values, the factor of each where the class and the context are dropped (`class`), or where the measurement and its camera are:
    /// what is dropped are zeros. `None` if all of it is replaced, or unchanged.
    pub fn kept_without(&self, class: bool) -> Option<Vec<f32>> {
        let InputKind::Vector(code) = self.kind else { return None };
        let factor = |i: usize| if (i < code.domains) == class { 0.0 } else { 1.0 };
        Some((0..code.width()).map(factor).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_nn::models::read;

    fn inputs(config: &str, conditioning: Option<&Conditioning>) -> Vec<ConditionInput> {
        let json: serde_json::Value = serde_json::from_str(config).unwrap();
        let rows = json["num_class_embeds"].as_u64().map(|n| n as usize);
        ConditionInput::of(&*read(config).unwrap(), rows, conditioning)
    }

    fn filled(input: &ConditionInput, of: &Conditions, tokens: usize) -> Result<Vec<f32>, String> {
        let mut out = vec![9.0; input.shape(tokens).iter().product()];
        input.fill(of, &mut out).map(|()| out)
    }

    const TABLE: &str = r#"{"_class_name": "UNet2DModel", "block_out_channels": [8, 8], "layers_per_block": 1,
        "norm_num_groups": 4, "num_class_embeds": 4,
        "down_block_types": ["DownBlock2D", "DownBlock2D"], "up_block_types": ["UpBlock2D", "UpBlock2D"]}"#;
    const CROSS: &str = r#"{"_class_name": "UNet2DConditionModel", "block_out_channels": [8, 8], "layers_per_block": 1,
        "norm_num_groups": 4, "attention_head_dim": 2, "cross_attention_dim": 3,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}"#;

    #[test]
    fn tables_of_classes_have_a_last_row_for_dropped_classes() {
        let [plain] = inputs(TABLE, None)[..] else { panic!("one input") };
        assert_eq!((plain.port, plain.dtype, plain.classes()), ("class", DType::I32, Some(4)));
        assert_eq!(plain.missing(&Conditions::default()), Some(MissingCondition::Class));
        let of = |class| Conditions { class, ..Conditions::default() };
        assert_eq!(filled(&plain, &of(Some(3)), 1).unwrap(), [3.0]);
        assert!(filled(&plain, &of(Some(4)), 1).unwrap_err().contains("class 4; there are 4"));
        let names = Conditioning { dropped: 0.1, ..Conditioning::default() };
        let [dropped] = inputs(TABLE, Some(&names))[..] else { panic!("one input") };
        assert_eq!((dropped.classes(), dropped.missing(&Conditions::default())), (Some(3), None));
        assert_eq!(filled(&dropped, &of(None), 1).unwrap(), [3.0]);
        assert!(filled(&dropped, &of(Some(3)), 1).is_err());
    }

    #[test]
    fn vectors_are_of_the_class_and_the_camera() {
        let text = r#"{"_class_name": "Local", "channels": [4], "blocks": 1, "vector_dim": 5}"#;
        let unknown = inputs(text, None);
        let missing = unknown[0].missing(&Conditions::default());
        assert_eq!(missing, Some(MissingCondition::Unknown { port: "vector", numbers: 5 }));
        let names = Conditioning {
            classes: vec!["a".into(), "b".into()],
            vector: vec![VectorPart::Domain, VectorPart::Camera],
            ..Conditioning::default()
        };
        let [input] = inputs(text, Some(&names))[..] else { panic!("one input") };
        let camera = Some(TakenBy { scale: 1000.0, read_noise: 2.0, background: 30.0 });
        let of = Conditions { class: Some(1), camera, context: None };
        let got = filled(&input, &of, 1).unwrap();
        assert!(got.iter().zip([0.0, 1.0, 0.5, 2e-3, 3e-2]).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
        assert_eq!(input.kept_without(true).unwrap(), [0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(input.kept_without(false).unwrap(), [1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(input.missing(&Conditions { class: None, ..of.clone() }), Some(MissingCondition::Class));
        assert_eq!(input.missing(&Conditions { camera: None, ..of }), Some(MissingCondition::Camera));
    }

    #[test]
    fn contexts_have_the_width_of_the_network() {
        let [input] = inputs(CROSS, None)[..] else { panic!("one input") };
        assert_eq!(input.shape(2), [2, 3]);
        let missing = input.missing(&Conditions::default());
        assert_eq!(missing, Some(MissingCondition::Context { width: 3 }));
        let context = Context::new([2, 3], (0..6).map(|i| i as f32).collect()).unwrap();
        let of = Conditions { context: Some(context.clone()), ..Conditions::default() };
        assert_eq!(filled(&input, &of, 2).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(filled(&input, &of, 3).unwrap_err().contains("2 x 3 numbers; 3 x 3"));
        assert_ne!(context.fingerprint(), Context::nothing(2, 3).fingerprint());
        assert!(Context::new([2, 3], vec![0.0; 5]).is_err());
        assert!(Context::new([1, 2], vec![0.0, f32::NAN]).unwrap_err().contains("number 1 of vector 0"));
    }
}
