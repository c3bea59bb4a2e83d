//! Whole graphs of a network: for inference, and for a training iteration against a given target.
//!
//! Inputs are `x` `[N, Y, X, C]` and `t` `[N]`, and `class` where the network is conditioned on classes.

use super::{ClassEmbedding, Extras, UNet2D};
use crate::Error;
use clearshot_graph::train::{Training, finish_iteration};
use clearshot_graph::{Builder, Graph, StateInit, Type, Value, losses};

impl UNet2D {
    /// Gives the output `y`.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn inference(&self, batch: usize, size: [usize; 2]) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let y = self.on_inputs(&mut b, batch, size, false);
        b.output("y", y);
        Ok(b.finish()?)
    }

    /// Takes the inputs `target` (as the network's output), `rate` and, where the network drops
    /// activations, `key`; gives the outputs `loss` (mean squared error) and `grad_norm`, and updates all
    /// trainable parameters.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn training(&self, batch: usize, size: [usize; 2], training: &Training) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let y = self.on_inputs(&mut b, batch, size, true);
        let shape = b.shape(y);
        let target = b.input("target", Type::f32(shape));
        let loss = losses::mse(&mut b, y, target);
        let params: Vec<Value> = self
            .parameters()?
            .iter()
            .filter(|p| p.trainable)
            .map(|p| b.state(&p.name, Type::f32(p.shape), StateInit::Given))
            .collect();
        finish_iteration(&mut b, loss, &params, training)?;
        Ok(b.finish()?)
    }

    fn on_inputs(&self, b: &mut Builder, batch: usize, size: [usize; 2], train: bool) -> Value {
        let x = b.input("x", Type::f32([batch, size[0], size[1], self.in_channels()]));
        let t = b.input("t", Type::f32([batch]));
        let class = self.class_input(b, batch);
        let dropout_key = (train && self.style.dropout > 0.0).then(|| b.input("key", Type::i32([4])));
        self.build(b, x, t, Extras { class, dropout_key })
    }

    /// The input that the network's classes come by.
    pub(super) fn class_input(&self, b: &mut Builder, batch: usize) -> Option<Value> {
        let ty = match self.class {
            ClassEmbedding::None => return None,
            ClassEmbedding::Table { .. } => Type::i32([batch]),
            ClassEmbedding::Timestep => Type::f32([batch]),
            ClassEmbedding::Identity => Type::f32([batch, self.embedding]),
        };
        Some(b.input("class", ty))
    }
}
