//! Parsed ONNX files: models, graphs, nodes, attributes and tensors, borrowed from the bytes of the file.
//!
//! Files are not trusted: lengths are checked against the available bytes, counts against limits, and values are copied
//! only after their tensor is known to be complete ([`crate::values`]).

use crate::error::ReadError;
use crate::wire::{Field, Fields};

/// More of each than any network has.
const MOST_NODES: usize = 100_000;
const MOST_TENSORS: usize = 100_000;
const MOST_PORTS: usize = 10_000;
const MOST_ATTRIBUTES: usize = 100;
const MOST_ENTRIES: usize = 10_000;
const MOST_AXES: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct OnnxModel<'a> {
    pub ir_version: i64,
    pub producer: &'a str,
    /// Domains of operators, with their versions.
    pub opsets: Vec<(&'a str, i64)>,
    pub graph: OnnxGraph<'a>,
    pub metadata: Vec<(&'a str, &'a str)>,
    /// Functions that the file defines itself.
    pub functions: usize,
}

#[derive(Clone, Debug, Default)]
pub struct OnnxGraph<'a> {
    pub name: &'a str,
    pub nodes: Vec<OnnxNode<'a>>,
    pub initializers: Vec<OnnxTensor<'a>>,
    pub inputs: Vec<ValueInfo<'a>>,
    pub outputs: Vec<ValueInfo<'a>>,
    pub sparse: usize,
}

#[derive(Clone, Debug, Default)]
pub struct OnnxNode<'a> {
    pub name: &'a str,
    pub op: &'a str,
    pub domain: &'a str,
    /// Empty names stand for operands that are left out.
    pub inputs: Vec<&'a str>,
    pub outputs: Vec<&'a str>,
    pub attributes: Vec<(&'a str, Attribute<'a>)>,
}

#[derive(Clone, Debug)]
pub enum Attribute<'a> {
    Float(f32),
    Int(i64),
    Text(&'a [u8]),
    Tensor(OnnxTensor<'a>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    /// Graphs, sparse tensors and lists of these.
    Other,
}

#[derive(Clone, Debug, Default)]
pub struct OnnxTensor<'a> {
    pub name: &'a str,
    pub dims: Vec<i64>,
    /// ONNX's number of the element type.
    pub element: i64,
    pub raw: Option<&'a [u8]>,
    pub floats: Vec<f32>,
    pub ints: Vec<i64>,
    pub doubles: Vec<f64>,
    /// Where the values are if they are in another file: `location`, `offset`, `length`.
    pub external: Vec<(&'a str, &'a str)>,
    pub is_external: bool,
}

/// An input or output of a graph.
#[derive(Clone, Debug, Default)]
pub struct ValueInfo<'a> {
    pub name: &'a str,
    pub element: i64,
    /// None where the file does not say how many axes there are.
    pub dims: Option<Vec<OnnxDim<'a>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnnxDim<'a> {
    Fixed(i64),
    Named(&'a str),
    Unknown,
}

impl<'a> OnnxDim<'a> {
    pub fn fixed(&self) -> Option<usize> {
        if let OnnxDim::Fixed(n) = self { usize::try_from(*n).ok() } else { None }
    }
}

fn push<T>(list: &mut Vec<T>, item: T, what: &'static str, most: usize) -> Result<(), ReadError> {
    if list.len() >= most {
        return Err(ReadError::TooMany { what, most });
    }
    list.push(item);
    Ok(())
}

impl<'a> OnnxModel<'a> {
    /// # Errors
    /// If the bytes are not a whole model of ONNX.
    pub fn parse(bytes: &'a [u8]) -> Result<OnnxModel<'a>, ReadError> {
        let mut model = OnnxModel::default();
        let mut has_graph = false;
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => model.ir_version = f.int()?,
                (2, f) => model.producer = f.text()?,
                (7, f) => {
                    model.graph = OnnxGraph::parse(f.bytes()?)?;
                    has_graph = true;
                }
                (8, f) => push(&mut model.opsets, opset(f)?, "operator sets", MOST_ENTRIES)?,
                (14, f) => push(&mut model.metadata, entry(f)?, "entries of metadata", MOST_ENTRIES)?,
                (25, _) => model.functions += 1,
                _ => {}
            }
        }
        if !has_graph {
            return Err(ReadError::Wire("there is no graph in it"));
        }
        Ok(model)
    }

    /// The version of ONNX's own operators.
    pub fn opset(&self) -> Option<i64> {
        let own = self.opsets.iter().filter(|(domain, _)| is_onnx(domain));
        own.map(|(_, version)| *version).max()
    }
}

/// Whether a domain is ONNX's own.
pub(crate) fn is_onnx(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

fn opset<'a>(field: Field<'a>) -> Result<(&'a str, i64), ReadError> {
    let (mut domain, mut version) = ("", 0);
    for field in Fields::new(field.bytes()?) {
        match field? {
            (1, f) => domain = f.text()?,
            (2, f) => version = f.int()?,
            _ => {}
        }
    }
    Ok((domain, version))
}

/// A pair of texts.
fn entry<'a>(field: Field<'a>) -> Result<(&'a str, &'a str), ReadError> {
    let (mut key, mut value) = ("", "");
    for field in Fields::new(field.bytes()?) {
        match field? {
            (1, f) => key = f.text()?,
            (2, f) => value = f.text()?,
            _ => {}
        }
    }
    Ok((key, value))
}

impl<'a> OnnxGraph<'a> {
    fn parse(bytes: &'a [u8]) -> Result<OnnxGraph<'a>, ReadError> {
        let mut graph = OnnxGraph::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => push(&mut graph.nodes, OnnxNode::parse(f.bytes()?)?, "nodes", MOST_NODES)?,
                (2, f) => graph.name = f.text()?,
                (5, f) => {
                    let tensor = OnnxTensor::parse(f.bytes()?)?;
                    push(&mut graph.initializers, tensor, "initializers", MOST_TENSORS)?;
                }
                (11, f) => push(&mut graph.inputs, ValueInfo::parse(f.bytes()?)?, "inputs", MOST_TENSORS)?,
                (12, f) => push(&mut graph.outputs, ValueInfo::parse(f.bytes()?)?, "outputs", MOST_PORTS)?,
                (15, _) => graph.sparse += 1,
                _ => {}
            }
        }
        Ok(graph)
    }
}

impl<'a> OnnxNode<'a> {
    fn parse(bytes: &'a [u8]) -> Result<OnnxNode<'a>, ReadError> {
        let mut node = OnnxNode::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => push(&mut node.inputs, f.text()?, "operands of a node", MOST_PORTS)?,
                (2, f) => push(&mut node.outputs, f.text()?, "results of a node", MOST_PORTS)?,
                (3, f) => node.name = f.text()?,
                (4, f) => node.op = f.text()?,
                (5, f) => {
                    let attribute = Attribute::parse(f.bytes()?)?;
                    push(&mut node.attributes, attribute, "attributes of a node", MOST_ATTRIBUTES)?;
                }
                (7, f) => node.domain = f.text()?,
                _ => {}
            }
        }
        Ok(node)
    }

    pub fn attribute(&self, name: &str) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|(n, _)| *n == name).map(|(_, a)| a)
    }
}

impl<'a> Attribute<'a> {
    fn parse(bytes: &'a [u8]) -> Result<(&'a str, Attribute<'a>), ReadError> {
        let (mut name, mut kind) = ("", None);
        let (mut float, mut int, mut text, mut tensor) = (None, None, None, None);
        let (mut floats, mut ints) = (vec![], vec![]);
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => name = f.text()?,
                (2, f) => float = Some(f.float()?),
                (3, f) => int = Some(f.int()?),
                (4, f) => text = Some(f.bytes()?),
                (5, f) => tensor = Some(OnnxTensor::parse(f.bytes()?)?),
                (7, f) => f.floats(&mut floats)?,
                (8, f) => f.ints(&mut ints)?,
                (20, f) => kind = Some(f.int()?),
                _ => {}
            }
        }
        // Files say of which kind an attribute is; old ones leave it to what is there.
        let guess = match () {
            () if float.is_some() => 1,
            () if int.is_some() => 2,
            () if text.is_some() => 3,
            () if tensor.is_some() => 4,
            () if !floats.is_empty() => 6,
            () if !ints.is_empty() => 7,
            () => 0,
        };
        let value = match kind.unwrap_or(guess) {
            1 => Attribute::Float(float.unwrap_or(0.0)),
            2 => Attribute::Int(int.unwrap_or(0)),
            3 => Attribute::Text(text.unwrap_or(b"")),
            4 => Attribute::Tensor(tensor.unwrap_or_default()),
            6 => Attribute::Floats(floats),
            7 => Attribute::Ints(ints),
            _ => Attribute::Other,
        };
        Ok((name, value))
    }
}

impl<'a> OnnxTensor<'a> {
    fn parse(bytes: &'a [u8]) -> Result<OnnxTensor<'a>, ReadError> {
        let mut tensor = OnnxTensor::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => {
                    f.ints(&mut tensor.dims)?;
                    if tensor.dims.len() > MOST_AXES {
                        return Err(ReadError::TooMany { what: "axes of a tensor", most: MOST_AXES });
                    }
                }
                (2, f) => tensor.element = f.int()?,
                (4, f) => f.floats(&mut tensor.floats)?,
                (5 | 7 | 11, f) => f.ints(&mut tensor.ints)?,
                (8, f) => tensor.name = f.text()?,
                (9, f) => tensor.raw = Some(f.bytes()?),
                (10, f) => f.doubles(&mut tensor.doubles)?,
                (13, f) => {
                    push(&mut tensor.external, entry(f)?, "entries of external data", MOST_ATTRIBUTES)?
                }
                (14, f) => tensor.is_external = f.int()? == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }
}

impl<'a> ValueInfo<'a> {
    fn parse(bytes: &'a [u8]) -> Result<ValueInfo<'a>, ReadError> {
        let mut info = ValueInfo::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => info.name = f.text()?,
                (2, f) => {
                    for field in Fields::new(f.bytes()?) {
                        if let (1, f) = field? {
                            info.tensor(f.bytes()?)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(info)
    }

    fn tensor(&mut self, bytes: &'a [u8]) -> Result<(), ReadError> {
        for field in Fields::new(bytes) {
            match field? {
                (1, f) => self.element = f.int()?,
                (2, f) => {
                    let mut dims = vec![];
                    for field in Fields::new(f.bytes()?) {
                        if let (1, f) = field? {
                            push(&mut dims, dim(f.bytes()?)?, "axes of an input", MOST_AXES)?;
                        }
                    }
                    self.dims = Some(dims);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn dim<'a>(bytes: &'a [u8]) -> Result<OnnxDim<'a>, ReadError> {
    let mut dim = OnnxDim::Unknown;
    for field in Fields::new(bytes) {
        match field? {
            (1, f) => dim = OnnxDim::Fixed(f.int()?),
            (2, f) => dim = OnnxDim::Named(f.text()?),
            _ => {}
        }
    }
    Ok(dim)
}
