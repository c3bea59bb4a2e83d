//! A node of the file with its attributes and operands, checked on access.

use crate::error::ImportError;
use crate::file::{Attribute, OnnxNode};

#[derive(Clone, Copy)]
pub(super) struct Call<'n, 'a> {
    pub node: &'n OnnxNode<'a>,
    /// The version of ONNX's operators that the file uses.
    pub opset: i64,
}

impl<'n, 'a> Call<'n, 'a> {
    /// The name of the node, or that of its first result.
    pub fn label(&self) -> String {
        match (self.node.name, self.node.outputs.first()) {
            ("", Some(first)) => format!("the node that makes `{first}`"),
            ("", None) => "a node without a name".into(),
            (name, _) => format!("node `{name}`"),
        }
    }

    pub fn fail<T>(&self, reason: impl Into<String>) -> Result<T, ImportError> {
        Err(ImportError::Node {
            op: self.node.op.into(),
            node: self.label(),
            opset: self.opset,
            reason: reason.into(),
        })
    }

    /// The name of operand `i`, where it is given.
    pub fn operand(&self, i: usize) -> Option<&'a str> {
        self.node.inputs.get(i).copied().filter(|name| !name.is_empty())
    }

    pub fn int(&self, name: &str) -> Result<Option<i64>, ImportError> {
        match self.node.attribute(name) {
            None => Ok(None),
            Some(Attribute::Int(v)) => Ok(Some(*v)),
            Some(_) => self.fail(format!("its attribute {name} is not a whole number")),
        }
    }

    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, ImportError> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    pub fn float_or(&self, name: &str, default: f32) -> Result<f64, ImportError> {
        match self.node.attribute(name) {
            None => Ok(f64::from(default)),
            Some(Attribute::Float(v)) => Ok(f64::from(*v)),
            Some(_) => self.fail(format!("its attribute {name} is not a number")),
        }
    }

    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, ImportError> {
        match self.node.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(v)) => Ok(Some(v.clone())),
            Some(_) => self.fail(format!("its attribute {name} is not a list of whole numbers")),
        }
    }

    /// A list of sizes, as long as it has to be.
    pub fn sizes_or(&self, name: &str, count: usize, default: usize) -> Result<Vec<usize>, ImportError> {
        let Some(values) = self.ints(name)? else { return Ok(vec![default; count]) };
        let sizes = values.iter().map(|&v| usize::try_from(v).ok().filter(|v| *v <= 1 << 30));
        match sizes.collect::<Option<Vec<_>>>() {
            Some(sizes) if sizes.len() == count => Ok(sizes),
            _ => self.fail(format!("{name} is {values:?} where {count} sizes are needed")),
        }
    }

    pub fn text_or(&self, name: &str, default: &'a str) -> Result<&'a str, ImportError> {
        match self.node.attribute(name) {
            None => Ok(default),
            Some(Attribute::Text(v)) => match std::str::from_utf8(v) {
                Ok(text) => Ok(text),
                Err(_) => self.fail(format!("its attribute {name} is not text")),
            },
            Some(_) => self.fail(format!("its attribute {name} is not text")),
        }
    }

    /// An axis that may count from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, ImportError> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(at) {
            Ok(at) if at < rank => Ok(at),
            _ => self.fail(format!("axis {axis} of a value with {rank} axes")),
        }
    }
}
