//! Random numbers for tests, and random graphs made with them.

use crate::moves::MOVES;
use clearshot_graph::ops::ReduceKind;
use clearshot_graph::{Array, Builder, Type, Value};
use clearshot_tensor::noise::Key;
use clearshot_tensor::{Shape, Tensor};
use std::collections::BTreeMap;

/// A stream of random numbers.
pub struct Draw {
    key: Key,
    at: u64,
}

impl Draw {
    pub fn new(seed: u64, stream: u32) -> Draw {
        Draw { key: Key { seed, step: 0, stream }, at: 0 }
    }

    pub fn unit(&mut self) -> f64 {
        self.at += 1;
        f64::from(self.key.uniform(self.at))
    }

    pub fn normal(&mut self) -> f64 {
        self.at += 1;
        f64::from(self.key.normal(self.at))
    }

    pub fn sign(&mut self) -> f64 {
        if self.unit() < 0.5 { -1.0 } else { 1.0 }
    }

    /// A whole number from `low` up to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.unit() * (high - low + 1) as f64) as usize
    }

    pub fn flip(&mut self) -> bool {
        self.unit() < 0.5
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len() - 1)]
    }
}

/// A graph while it is drawn.
pub struct Drawing {
    pub b: Builder,
    pub d: Draw,
    pub values: BTreeMap<String, Array>,
    /// What the loss is differentiated by.
    pub leaves: Vec<(String, Value)>,
    /// Images to go on from; all of them have as many axes.
    pub pool: Vec<Value>,
    pub loss: Value,
}

/// Larger values are not built upon, to keep the interpreter quick.
const MOST_ELEMENTS: usize = 600;
/// Operations of one graph.
const LENGTH: usize = 6;

impl Drawing {
    fn fresh_name(&self) -> String {
        format!("leaf{}", self.values.len())
    }

    /// A new parameter of normal values.
    pub fn leaf(&mut self, shape: impl Into<Shape>, scale: f64) -> Value {
        let (shape, name) = (shape.into(), self.fresh_name());
        let v = self.b.param(&name, shape);
        self.fill(name, v, scale)
    }

    fn input(&mut self, shape: Shape) -> Value {
        let name = self.fresh_name();
        let v = self.b.input(&name, Type::f32(shape));
        self.fill(name, v, 1.0)
    }

    fn fill(&mut self, name: String, v: Value, scale: f64) -> Value {
        let shape = self.b.shape(v);
        let data = (0..shape.len()).map(|_| scale * self.d.normal()).collect();
        self.values.insert(name.clone(), Array::new(shape, data));
        self.leaves.push((name, v));
        v
    }

    /// A constant of normal values.
    pub fn constant(&mut self, shape: Shape) -> Value {
        let data = (0..shape.len()).map(|_| self.d.normal() as f32).collect();
        self.b.constant(Tensor::f32(shape, data))
    }

    /// A key for random operations.
    pub fn key(&mut self) -> Value {
        let words = (0..4).map(|_| self.d.between(0, 1 << 20) as i32).collect();
        self.b.constant(Tensor::i32([4], words))
    }

    /// Whole numbers below `rows`, of shape `[n]`.
    pub fn indices(&mut self, n: usize, rows: usize) -> Value {
        let values = (0..n).map(|_| self.d.between(0, rows - 1) as i32).collect();
        self.b.constant(Tensor::i32([n], values))
    }

    /// An image to go on from: often the newest, so that graphs are deep, and at times an older one, so
    /// that values have several readers.
    pub fn image(&mut self) -> Value {
        let small: Vec<Value> =
            self.pool.iter().copied().filter(|v| self.b.shape(*v).len() <= MOST_ELEMENTS).collect();
        if self.d.unit() < 0.7 { small[small.len() - 1] } else { self.d.pick(&small) }
    }

    /// Between -1 and 1, smoothly.
    pub fn bounded(&mut self, x: Value) -> Value {
        self.b.unary(clearshot_graph::ops::Unary::Tanh, x)
    }

    /// Between 0.5 and 1.5, smoothly.
    pub fn positive(&mut self, x: Value) -> Value {
        let x = self.b.unary(clearshot_graph::ops::Unary::Sigmoid, x);
        self.b.add_scalar(x, 0.5)
    }

    /// Adds the mean of `x` times random constants to the loss.
    pub fn observe(&mut self, x: Value) {
        let weights = self.constant(self.b.shape(x));
        let product = self.b.mul(x, weights);
        let mean = self.b.reduce_all(ReduceKind::Mean, product);
        self.add_loss(mean);
    }

    pub fn add_loss(&mut self, scalar: Value) {
        self.loss = self.b.add(self.loss, scalar);
    }
}

/// The graph of a seed. The seed also walks through the moves, so that none is left out.
pub fn graph(seed: u64) -> Drawing {
    let mut b = Builder::new();
    let loss = b.scalar(0.0);
    let (d, values) = (Draw::new(seed, 0), BTreeMap::new());
    let mut g = Drawing { b, d, values, leaves: vec![], pool: vec![], loss };
    let dims = g.d.between(2, 3);
    let mut sizes = vec![g.d.between(1, 2)];
    sizes.extend((0..dims).map(|_| g.d.between(3, if dims == 2 { 5 } else { 4 })));
    sizes.push(g.d.pick(&[2, 4]));
    let x = g.input(Shape::new(&sizes));
    g.pool.push(x);
    for i in 0..LENGTH {
        let next = if i == 0 { seed as usize % MOVES.len() } else { g.d.between(0, MOVES.len() - 1) };
        if let Some(v) = MOVES[next](&mut g) {
            if g.b.shape(v).rank() == sizes.len() {
                g.pool.push(v);
            } else {
                g.observe(v);
            }
        }
    }
    let last = g.pool[g.pool.len() - 1];
    g.observe(last);
    g
}
