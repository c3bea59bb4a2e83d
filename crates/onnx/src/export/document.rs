//! The contents of an ONNX file to be written, and its bytes.
//!
//! Every message is preceded by its length, so the size of the file is computed before it is written; weights are then
//! converted to ONNX's layout one at a time, and a large model needs no second copy in memory.

use crate::error::ExportError;
use crate::wire::Message;
use crate::{IR_VERSION, OPSET};
use clearshot_nn::Weights;
use clearshot_tensor::{DType, Data, Tensor};
use std::borrow::Cow;
use std::io::Write;

/// The largest file that protobuf can hold.
const LARGEST: usize = (1 << 31) - 1;

pub(super) enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
}

pub(super) struct Node {
    pub op: &'static str,
    pub name: String,
    pub inputs: Vec<String>,
    pub output: String,
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// Where the values of an initializer come from.
pub(super) enum Source {
    Given(Tensor),
    /// The weight of this name, its axes in this order.
    Weight {
        name: String,
        order: Vec<usize>,
        sizes: Vec<usize>,
    },
}

pub(super) struct Initializer {
    pub name: String,
    pub source: Source,
}

/// A size of an input or output.
#[derive(Clone, Debug, PartialEq)]
pub enum Dim {
    Fixed(usize),
    /// Any size, the same wherever this name stands.
    Any(String),
}

/// An input or output of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    pub name: String,
    pub dtype: DType,
    pub dims: Vec<Dim>,
    /// Its description, with the unit.
    pub about: String,
}

/// See the module.
pub(super) struct Document {
    pub name: String,
    pub about: String,
    pub nodes: Vec<Node>,
    pub initializers: Vec<Initializer>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub metadata: Vec<(String, String)>,
}

/// ONNX's number of an element type.
fn element(dtype: DType) -> i64 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::BF16 => 16,
        DType::F8 => 17,
    }
}

impl Node {
    fn message(&self) -> Message {
        let mut m = Message::new();
        self.inputs.iter().for_each(|name| m.text(1, name));
        m.text(2, &self.output);
        m.text(3, &self.name);
        m.text(4, self.op);
        for (name, value) in &self.attributes {
            m.message(5, &value.message(name));
        }
        m
    }
}

impl Attribute {
    fn message(&self, name: &str) -> Message {
        let mut m = Message::new();
        m.text(1, name);
        let kind = match self {
            Attribute::Float(v) => {
                m.float(2, *v);
                1
            }
            Attribute::Int(v) => {
                m.int(3, *v);
                2
            }
            Attribute::Text(v) => {
                m.text(4, v);
                3
            }
            Attribute::Ints(v) => {
                v.iter().for_each(|i| m.int(8, *i));
                7
            }
        };
        m.int(20, kind);
        m
    }
}

impl Port {
    fn message(&self) -> Message {
        let (mut shape, mut tensor, mut ty, mut m) =
            (Message::new(), Message::new(), Message::new(), Message::new());
        for dim in &self.dims {
            let mut d = Message::new();
            match dim {
                Dim::Fixed(size) => d.int(1, *size as i64),
                Dim::Any(name) => d.text(2, name),
            }
            shape.message(1, &d);
        }
        tensor.int(1, element(self.dtype));
        tensor.message(2, &shape);
        ty.message(1, &tensor);
        m.text(1, &self.name);
        m.message(2, &ty);
        m.text(3, &self.about);
        m
    }
}

impl Initializer {
    /// The message up to its values, and the number of their bytes.
    fn head(&self) -> (Message, usize) {
        let (sizes, dtype) = match &self.source {
            Source::Given(tensor) => (tensor.shape().to_vec(), tensor.dtype()),
            Source::Weight { sizes, .. } => (sizes.clone(), DType::F32),
        };
        let bytes = sizes.iter().product::<usize>() * dtype.bytes();
        let mut m = Message::new();
        sizes.iter().for_each(|s| m.int(1, *s as i64));
        m.int(2, element(dtype));
        m.text(8, &self.name);
        m.begin_bytes(9, bytes);
        (m, bytes)
    }

    fn values<'a>(&'a self, weights: &Weights) -> Result<Cow<'a, Tensor>, ExportError> {
        match &self.source {
            Source::Given(tensor) => Ok(Cow::Borrowed(tensor)),
            Source::Weight { name, order, .. } => {
                let weight = weights.get(name).ok_or_else(|| ExportError::Weight(name.clone()))?;
                Ok(Cow::Owned(weight.to_f32().permuted(order)))
            }
        }
    }
}

/// Little-endian, as ONNX has it.
fn write_values(tensor: &Tensor, out: &mut dyn Write) -> std::io::Result<()> {
    fn all<T: Copy, const N: usize>(
        values: &[T],
        bytes: fn(T) -> [u8; N],
        out: &mut dyn Write,
    ) -> std::io::Result<()> {
        let mut parts = values.chunks(1 << 14);
        parts.try_for_each(|part| out.write_all(&part.iter().flat_map(|&x| bytes(x)).collect::<Vec<u8>>()))
    }
    match tensor.data() {
        Data::F32(v) => all(v, f32::to_le_bytes, out),
        Data::I32(v) => all(v, i32::to_le_bytes, out),
        Data::I64(v) => all(v, i64::to_le_bytes, out),
        Data::U8(v) => out.write_all(v),
        other => Err(std::io::Error::other(format!("a constant of {}", other.dtype()))),
    }
}

impl Document {
    /// Writes the file.
    ///
    /// # Errors
    /// If it would be larger than 2 GiB, a weight is missing, or `out` fails.
    pub fn write(&self, weights: &Weights, out: &mut dyn Write) -> Result<(), ExportError> {
        let mut graph = Message::new();
        self.nodes.iter().for_each(|n| graph.message(1, &n.message()));
        graph.text(2, &self.name);
        graph.text(10, &self.about);
        self.inputs.iter().for_each(|p| graph.message(11, &p.message()));
        self.outputs.iter().for_each(|p| graph.message(12, &p.message()));
        let heads: Vec<(Message, Message, usize)> = self
            .initializers
            .iter()
            .map(|i| {
                let (head, bytes) = i.head();
                let mut field = Message::new();
                field.begin_bytes(5, head.as_bytes().len() + bytes);
                (field, head, bytes)
            })
            .collect();
        let of_one = |(field, head, bytes): &(Message, Message, usize)| {
            field.as_bytes().len() + head.as_bytes().len() + bytes
        };
        let len = graph.as_bytes().len() + heads.iter().map(of_one).sum::<usize>();
        if len > LARGEST {
            return Err(ExportError::TooLarge { bytes: len });
        }
        let mut model = self.front();
        model.begin_bytes(7, len);
        out.write_all(model.as_bytes())?;
        out.write_all(graph.as_bytes())?;
        for (initializer, (field, head, _)) in self.initializers.iter().zip(&heads) {
            out.write_all(field.as_bytes())?;
            out.write_all(head.as_bytes())?;
            write_values(&*initializer.values(weights)?, out)?;
        }
        Ok(())
    }

    /// Everything but the graph.
    fn front(&self) -> Message {
        let mut model = Message::new();
        model.int(1, IR_VERSION);
        model.text(2, "clearshot");
        model.text(3, env!("CARGO_PKG_VERSION"));
        let mut opset = Message::new();
        opset.text(1, "");
        opset.int(2, OPSET);
        model.message(8, &opset);
        for (key, value) in &self.metadata {
            let mut entry = Message::new();
            entry.text(1, key);
            entry.text(2, value);
            model.message(14, &entry);
        }
        model
    }
}
