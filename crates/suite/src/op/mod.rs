//! Cases of one operation: its result, and the gradients that an upstream gradient gives.
//!
//! PyTorch's layout ends here: tensors are turned into ours on the way in, and so is the truth that
//! results are compared with.

mod build;

use crate::Result;
use crate::case::{Attrs, Case};
use crate::engine::Engine;
use crate::report::{Checks, Class};
use clearshot_graph::grad::grad;
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::{DType, Data, Tensor};
use std::collections::BTreeMap;

/// Builds the case's graph, runs it and compares.
///
/// # Errors
/// If the op or one of its attributes is unknown, or the engine refuses the graph.
pub fn run(case: &Case, engine: Engine) -> Result<Checks> {
    let name = case.attrs.text("op").ok_or("the case has no attribute `op`")?;
    let border = Border::of(name, &case.attrs)?;
    let mut b = Builder::new();
    let mut given: Vec<(String, Tensor)> = vec![];
    let mut operands: BTreeMap<String, Value> = BTreeMap::new();
    for (operand, tensor) in case.tensors_of("in.") {
        let tensor = border.ours(tensor)?;
        let input = format!("in.{operand}");
        let value = b.input(&input, Type { dtype: tensor.dtype(), shape: tensor.shape() });
        operands.insert(operand.into(), value);
        given.push((input, tensor));
    }
    let y = build::build(&mut b, name, &Operands { values: &operands, attrs: &case.attrs, case })?;
    b.output("out.y", y);
    let upstream = border.ours(case.tensor("gout.y")?)?;
    let dy = b.input("gout.y", Type::f32(upstream.shape()));
    given.push(("gout.y".into(), upstream));
    let wanted: Vec<&str> = case.tensors_of("gin.").map(|(operand, _)| operand).collect();
    let by: Vec<Value> = wanted.iter().map(|w| operands[*w]).collect();
    for (operand, g) in wanted.iter().zip(grad(&mut b, y, Some(dy), &by)?) {
        b.output(&format!("gin.{operand}"), g);
    }
    let mut session = engine.open(b.finish()?)?;
    for (input, tensor) in &given {
        session.set(input, tensor)?;
    }
    session.run()?;
    let mut checks = Checks::default();
    checks.tensor(Class::OpOutput, "y", &session.get("out.y")?, &border.ours(case.tensor("out.y")?)?);
    for operand in wanted {
        let key = format!("gin.{operand}");
        let truth = border.ours(case.tensor(&key)?)?;
        checks.tensor(Class::OpGradient, format!("gradient of {operand}"), &session.get(&key)?, &truth);
    }
    Ok(checks)
}

/// What an op is built from.
struct Operands<'a> {
    values: &'a BTreeMap<String, Value>,
    attrs: &'a Attrs,
    case: &'a Case,
}

impl Operands<'_> {
    fn get(&self, name: &str) -> Result<Value> {
        self.values.get(name).copied().ok_or_else(|| format!("the case has no tensor `in.{name}`").into())
    }

    fn maybe(&self, name: &str) -> Option<Value> {
        self.values.get(name).copied()
    }

    /// The only operand, whatever its name.
    fn only(&self) -> Result<Value> {
        match self.values.values().collect::<Vec<_>>()[..] {
            [&one] => Ok(one),
            _ => self.get("x"),
        }
    }
}

/// How an op's tensors turn from PyTorch's layout into ours.
enum Border {
    /// As they are.
    Plain,
    /// Channels last.
    Image,
    /// Attention's heads side by side along channels; where b, s, h and d lie in the file.
    Heads([usize; 4]),
}

impl Border {
    fn of(op: &str, attrs: &Attrs) -> Result<Border> {
        Ok(match op {
            "attention" => match attrs.text("layout").unwrap_or("b h s d") {
                "b h s d" => Border::Heads([0, 2, 1, 3]),
                "b s h d" => Border::Heads([0, 1, 2, 3]),
                other => return Err(format!("unknown layout `{other}` of attention").into()),
            },
            _ if build::is_spatial(op) => Border::Image,
            _ => Border::Plain,
        })
    }

    fn ours(&self, tensor: &Tensor) -> Result<Tensor> {
        let tensor = match self {
            Border::Plain => tensor.clone(),
            Border::Image => tensor.channels_last(),
            Border::Heads(order) => {
                let t = tensor.permuted(order);
                let s = t.shape();
                t.reshaped([s[0], s[1], s[2] * s[3]])?
            }
        };
        Ok(match tensor.dtype() {
            DType::F32 | DType::I32 => tensor,
            DType::I64 => {
                let values = tensor.to_f64().iter().map(|&v| v as i32).collect();
                Tensor::new(tensor.shape(), Data::I32(values))?
            }
            _ => tensor.to_f32(),
        })
    }
}
