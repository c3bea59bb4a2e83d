//! Whole graphs of a network: for inference, and for a training iteration against a given target.
//!
//! Inputs are `x` `[N, Y, X, C]` and `t` `[N]`, and `class` where the network is conditioned on classes.

use super::{ClassEmbedding, Extras, UNet2D};
use crate::Error;
use crate::layers::Scope;
use crate::models::network::{Given, Network, Port, multiples};
use clearshot_graph::train::Training;
use clearshot_graph::{Graph, Type, Value};
use clearshot_tensor::Shape;

impl UNet2D {
    /// As every network's, for a plane: gives the output `y`.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn inference(&self, batch: usize, size: [usize; 2]) -> Result<Graph, Error> {
        Network::inference(self, batch, &size)
    }

    /// As every network's, for a plane: takes the inputs `target` (as the network's output), `rate` and, where the
    /// network drops activations, `key`; gives the outputs `loss` (mean squared error) and `grad_norm`, and updates all
    /// trainable parameters.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn training(&self, batch: usize, size: [usize; 2], training: &Training) -> Result<Graph, Error> {
        Network::training(self, batch, &size, training)
    }

    fn class_type(&self, batch: usize) -> Option<Type> {
        match self.class {
            ClassEmbedding::None => None,
            ClassEmbedding::Table { .. } => Some(Type::i32([batch])),
            ClassEmbedding::Timestep => Some(Type::f32([batch])),
            ClassEmbedding::Identity => Some(Type::f32([batch, self.embedding])),
        }
    }
}

impl Network for UNet2D {
    fn in_channels(&self) -> usize {
        self.in_channels
    }

    fn out_channels(&self) -> usize {
        self.out_channels
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let class = self.class_type(image[0]).map(|ty| Port::new("class", ty));
        [Port::scalar("t", image)].into_iter().chain(class).collect()
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        multiples(size, &[self.multiple(); 2])
    }

    fn example_size(&self) -> Vec<usize> {
        vec![self.multiple(); 2]
    }

    fn drops(&self) -> bool {
        self.style.dropout > 0.0
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let extras = Extras { class: given.get("class"), dropout_key: given.get("key") };
        self.add(s, given.x(), given.need("t"), extras)
    }
}
