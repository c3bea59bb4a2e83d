//! The nodes of an ONNX graph under construction: names, constants, sizes that follow from images, and changes of layout.

use super::document::{Attribute, Initializer, Node, Source};
use super::layout;
use super::sizes::{Size, Sizes};
use crate::error::ExportError;
use clearshot_graph::{Op, Value};
use clearshot_tensor::{DType, Data, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Emitter<'a> {
    pub sizes: Sizes<'a>,
    pub nodes: Vec<Node>,
    pub initializers: Vec<Initializer>,
    /// ONNX's names of the values made so far.
    names: BTreeMap<Value, String>,
    made: BTreeSet<String>,
    /// The name of the node that is being written.
    prefix: String,
    op: &'static str,
}

pub(super) type Made = Result<String, ExportError>;

impl<'a> Emitter<'a> {
    pub fn new(sizes: Sizes<'a>) -> Emitter<'a> {
        Emitter {
            sizes,
            nodes: vec![],
            initializers: vec![],
            names: BTreeMap::new(),
            made: BTreeSet::new(),
            prefix: String::new(),
            op: "",
        }
    }

    /// What is emitted from now on belongs to this node of ours.
    pub fn begin(&mut self, index: usize) {
        let node = &self.sizes.graph().nodes[index];
        let scope = node.scope.replace('.', "/");
        let slash = if scope.is_empty() { "" } else { "/" };
        self.prefix = format!("{scope}{slash}{}_{index}", node.op.name());
        self.op = node.op.name();
    }

    pub fn refuse<T>(&self, reason: impl Into<String>) -> Result<T, ExportError> {
        Err(ExportError::Op { op: self.op, scope: self.prefix.clone(), reason: reason.into() })
    }

    /// Gives one of our values its name.
    pub fn bind(&mut self, v: Value, name: String) {
        self.names.insert(v, name);
    }

    /// A value in ONNX's layout. Weights and constants are added when they are first read.
    pub fn name(&mut self, v: Value) -> Made {
        if let Some(name) = self.names.get(&v) {
            return Ok(name.clone());
        }
        let graph = self.sizes.graph();
        let order = layout::order(self.sizes.rank(v));
        let name = match graph.op(v) {
            Op::State(s) => self.weight(v, &s.name, order),
            Op::Const(c) if self.sizes.shapes(v).any(|s| s != c.0.shape()) => {
                let Some(value) = self.uniform(v) else {
                    return self.refuse("a constant whose size follows from the image");
                };
                let (number, shape) = (self.scalar(value), self.shape(v, &order)?);
                self.call("Expand", &[&number, &shape])
            }
            Op::Const(c) => {
                self.initializer(format!("const_{}", v.at()), Source::Given(c.0.permuted(&order)))
            }
            _ => return self.refuse("it reads a second output, which only training makes"),
        };
        self.bind(v, name.clone());
        Ok(name)
    }

    /// Adds a node; its result's name.
    pub fn node(
        &mut self,
        op: &'static str,
        inputs: &[&str],
        attributes: Vec<(&'static str, Attribute)>,
    ) -> String {
        let mut output = format!("{}/{op}", self.prefix);
        let mut number = 1;
        while self.made.contains(&output) {
            number += 1;
            output = format!("{}/{op}_{number}", self.prefix);
        }
        self.made.insert(output.clone());
        self.nodes.push(Node {
            op,
            name: output.clone(),
            inputs: inputs.iter().map(|s| s.to_string()).collect(),
            output: output.clone(),
            attributes,
        });
        output
    }

    /// A node without attributes.
    pub fn call(&mut self, op: &'static str, inputs: &[&str]) -> String {
        self.node(op, inputs, vec![])
    }

    /// The only value that a constant has, at every size.
    fn uniform(&self, v: Value) -> Option<f64> {
        let values = |node: &clearshot_graph::Node| match &node.op {
            Op::Const(c) if c.0.dtype() == DType::F32 => Some(c.0.to_f64()),
            _ => None,
        };
        let all: Vec<f64> = self.sizes.nodes(v.at()).map(values).collect::<Option<Vec<_>>>()?.concat();
        let first = *all.first()?;
        all.iter().all(|x| *x == first).then_some(first)
    }

    /// Gives a result the name that the file's output has.
    pub fn identity(&mut self, x: &str, name: &str) {
        let node = Node {
            op: "Identity",
            name: format!("output/{name}"),
            inputs: vec![x.into()],
            output: name.into(),
            attributes: vec![],
        };
        self.nodes.push(node);
    }

    /// Adds a constant, once for each name.
    pub fn initializer(&mut self, name: String, source: Source) -> String {
        if self.made.insert(name.clone()) {
            self.initializers.push(Initializer { name: name.clone(), source });
        }
        name
    }

    pub fn scalar(&mut self, x: f64) -> String {
        self.initializer(format!("number_{}", x as f32), Source::Given(Tensor::scalar(x as f32)))
    }

    /// A list of whole numbers, as the sizes and axes that are inputs in ONNX.
    pub fn ints(&mut self, values: &[i64]) -> String {
        let name = format!("ints_{}", values.iter().map(i64::to_string).collect::<Vec<_>>().join("_"));
        let tensor = Tensor::new([values.len()], Data::I64(values.to_vec())).expect("as many as there are");
        self.initializer(name, Source::Given(tensor))
    }

    /// The weight that one of our states is, with its axes in another order than ours.
    pub fn weight(&mut self, v: Value, name: &str, order: Vec<usize>) -> String {
        let shape = self.sizes.graph().shape(v);
        let plain = layout::order(shape.rank()) == order;
        let shown = if plain { name.to_string() } else { format!("{name}.transposed") };
        let sizes = order.iter().map(|&a| shape[a]).collect();
        self.initializer(shown, Source::Weight { name: name.into(), order, sizes })
    }

    /// One size as a list of one number.
    fn size(&mut self, size: Size) -> Made {
        match size {
            Size::Fixed(n) => Ok(self.ints(&[n as i64])),
            Size::Like(v, axis, [times, over]) => {
                let rank = self.sizes.rank(v);
                let source = self.name(v)?;
                let name = format!("{source}/size_{axis}");
                if self.made.insert(name.clone()) {
                    let shape = self.call("Shape", &[&source]);
                    let at = self.ints(&[layout::place(rank, axis) as i64]);
                    self.nodes.push(Node {
                        op: "Gather",
                        name: name.clone(),
                        inputs: vec![shape, at],
                        output: name.clone(),
                        attributes: vec![],
                    });
                }
                let mut size = name;
                for (op, by) in [("Mul", times), ("Div", over)].into_iter().filter(|(_, by)| *by != 1) {
                    let by = self.ints(&[by as i64]);
                    size = self.call(op, &[&size, &by]);
                }
                Ok(size)
            }
        }
    }

    /// A value's sizes, in ONNX's or in our order, as a tensor.
    pub fn shape(&mut self, v: Value, order: &[usize]) -> Made {
        let mut sizes = vec![];
        for &axis in order {
            match self.sizes.find(v, axis) {
                Some(size) => sizes.push(size),
                None => return self.refuse(format!("the size of axis {axis} is that of no value before")),
            }
        }
        let fixed = |s: &Size| if let Size::Fixed(n) = s { Some(*n as i64) } else { None };
        if let Some(all) = sizes.iter().map(fixed).collect::<Option<Vec<i64>>>() {
            return Ok(self.ints(&all));
        }
        let parts = sizes.into_iter().map(|s| self.size(s)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.node("Concat", &parts, vec![("axis", Attribute::Int(0))]))
    }

    /// `x` under the sizes of the value `to`, in the given order of its axes. `from` are the sizes that x has there, as
    /// places of values.
    pub fn reshaped(&mut self, x: &str, from: &[(Value, usize)], to: Value, order: &[usize]) -> Made {
        // In ONNX 0 stands for the size that x has at that place, and -1 for what is left.
        let copied =
            |i: usize, axis: usize| from.get(i).is_some_and(|&(v, a)| self.sizes.same(v, a, to, axis));
        let mut left = 0;
        let spec: Vec<i64> = order
            .iter()
            .enumerate()
            .map(|(i, &axis)| match self.sizes.fixed(to, axis) {
                Some(size) => size as i64,
                None if copied(i, axis) => 0,
                None => {
                    left += 1;
                    -1
                }
            })
            .collect();
        let shape = if left <= 1 { self.ints(&spec) } else { self.shape(to, order)? };
        Ok(self.call("Reshape", &[x, &shape]))
    }

    pub fn transposed(&mut self, x: &str, order: &[usize]) -> String {
        if order.iter().enumerate().all(|(i, a)| i == *a) {
            return x.into();
        }
        let order = order.iter().map(|&a| a as i64).collect();
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(order))])
    }

    /// Whether a value lies in memory in the same order with channels last and second.
    fn lies_alike(&self, v: Value) -> bool {
        let rank = self.sizes.rank(v);
        !layout::is_image(rank)
            || self.sizes.is_one(v, 1..rank - 1)
            || self.sizes.is_one(v, std::iter::once(rank - 1))
    }

    /// A value of ours under the shape of another with as many elements, both seen with channels last.
    pub fn reshape(&mut self, x: Value, to: Value) -> Made {
        let (rank, new) = (self.sizes.rank(x), self.sizes.rank(to));
        let mut name = self.name(x)?;
        let mut axes = layout::order(rank);
        if !self.lies_alike(x) {
            name = self.transposed(&name, &layout::back(rank));
            axes = (0..rank).collect();
        }
        let from: Vec<(Value, usize)> = axes.into_iter().map(|a| (x, a)).collect();
        if self.lies_alike(to) {
            return self.reshaped(&name, &from, to, &layout::order(new));
        }
        let plain = self.reshaped(&name, &from, to, &(0..new).collect::<Vec<_>>())?;
        Ok(self.transposed(&plain, &layout::order(new)))
    }

    /// A value as an operand of elementwise arithmetic that gives `rank` axes.
    pub fn aligned(&mut self, v: Value, rank: usize) -> Made {
        let own = self.sizes.rank(v);
        if own == rank || own == 0 || (!layout::is_image(own) && !layout::is_image(rank)) {
            return self.name(v);
        }
        let graph = self.sizes.graph();
        if let Op::Const(c) = graph.op(v) {
            let wide = (*c.0).clone().reshaped(c.0.shape().padded_to(rank));
            let tensor = wide.expect("leading ones change no count").permuted(&layout::order(rank));
            return Ok(self.initializer(format!("const_{}_rank_{rank}", v.at()), Source::Given(tensor)));
        }
        // Leading axes of size 1, then ONNX's order.
        let name = self.name(v)?;
        let name = self.transposed(&name, &layout::back(own));
        let mut spec = vec![1; rank - own];
        for axis in 0..own {
            // A size that is not fixed stands behind new axes and can only be left open.
            spec.push(self.sizes.fixed(v, axis).map_or(-1, |s| s as i64));
        }
        if spec.iter().filter(|s| **s == -1).count() > 1 {
            return self.refuse(format!("{own} axes are broadcast to {rank}"));
        }
        let spec = self.ints(&spec);
        let wide = self.call("Reshape", &[&name, &spec]);
        Ok(self.transposed(&wide, &layout::order(rank)))
    }

    /// A parameter of each channel as an operand beside an image of `rank` axes in ONNX's layout.
    pub fn per_channel(&mut self, v: Value, rank: usize) -> Made {
        let c = self.sizes.graph().shape(v).channels();
        let mut sizes = vec![1; rank.saturating_sub(2)];
        sizes.insert(0, c);
        if let Op::Const(t) = self.sizes.graph().op(v) {
            let tensor = (*t.0).clone().reshaped(Shape::new(&sizes)).expect("one for each channel");
            return Ok(
                self.initializer(format!("const_{}_per_channel_{rank}", v.at()), Source::Given(tensor))
            );
        }
        let name = self.name(v)?;
        let spec = self.ints(&sizes.iter().map(|&s| s as i64).collect::<Vec<_>>());
        Ok(self.call("Reshape", &[&name, &spec]))
    }

    /// Numbers `[N, C]` as an operand beside an image of `rank` axes in ONNX's layout.
    pub fn per_sample(&mut self, v: Value, rank: usize) -> Made {
        let name = self.name(v)?;
        let mut spec = vec![0, 0];
        spec.resize(rank, 1);
        let spec = self.ints(&spec);
        Ok(self.call("Reshape", &[&name, &spec]))
    }
}
