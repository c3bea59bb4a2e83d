//! A network with some of its convolutions in 8 bits.
//!
//! The network is built unchanged; then the convolutions whose weights are in the table are rounded (`graph::ops::int8`).
//! Parameters keep their names and shapes, so weights, graphs and files need no changes.

use crate::Error;
use crate::layers::Scope;
use crate::models::network::{Answer, Given, Network, Port};
use clearshot_graph::Value;
use clearshot_graph::ops::int8::Table;
use clearshot_graph::passes::int8::steps;
use clearshot_tensor::Shape;

#[derive(Debug)]
pub struct Quantised {
    network: Box<dyn Network>,
    table: Table,
}

impl Quantised {
    /// # Errors
    /// If the table names a weight that is not that of a convolution, or has steps for other channels.
    pub fn new(network: Box<dyn Network>, table: Table) -> Result<Quantised, Error> {
        let made = Quantised { network, table };
        made.parameters()?;
        Ok(made)
    }

    /// The network with all of it in f32.
    pub fn into_network(self) -> Box<dyn Network> {
        self.network
    }

    /// Adds nodes, of which convolutions are rounded.
    fn rounded<T>(&self, s: &mut Scope<'_>, add: impl FnOnce(&mut Scope<'_>) -> T) -> T {
        let steps = steps(s.b, &self.table);
        let first = s.b.graph().nodes.len();
        let made = add(s);
        s.b.round_convolutions(first, &steps);
        made
    }
}

impl Network for Quantised {
    fn in_channels(&self) -> usize {
        self.network.in_channels()
    }

    fn out_channels(&self) -> usize {
        self.network.out_channels()
    }

    fn dims(&self) -> usize {
        self.network.dims()
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        self.network.ports(image)
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        self.network.check_size(size)
    }

    fn example_size(&self) -> Vec<usize> {
        self.network.example_size()
    }

    fn drops(&self) -> bool {
        self.network.drops()
    }

    fn base_fan_in(&self) -> Option<usize> {
        self.network.base_fan_in()
    }

    fn int8(&self) -> Option<&Table> {
        Some(&self.table)
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        self.rounded(s, |s| self.network.add(s, given))
    }

    fn says_error(&self) -> bool {
        self.network.says_error()
    }

    fn answer(&self, s: &mut Scope<'_>, given: &Given) -> Answer {
        self.rounded(s, |s| self.network.answer(s, given))
    }

    fn outputs(&self, s: &mut Scope<'_>, given: &Given) -> Vec<(f64, Value)> {
        self.rounded(s, |s| self.network.outputs(s, given))
    }
}
