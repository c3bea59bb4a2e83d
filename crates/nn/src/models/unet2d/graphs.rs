//! Whole graphs of a network: for inference, and for a training iteration against a given target.

use super::{Extras, UNet2D};
use crate::Error;
use clearshot_graph::train::{Training, finish_iteration};
use clearshot_graph::{Builder, Graph, StateInit, Type, Value, losses};

impl UNet2D {
    /// Inputs `x` `[N, Y, X, C]` and `t` `[N]`, output `y`.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn inference(&self, batch: usize, size: [usize; 2]) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let y = self.on_inputs(&mut b, batch, size);
        b.output("y", y);
        Ok(b.finish()?)
    }

    /// Inputs `x`, `t`, `target` (as the network's output) and `rate`; outputs `loss` (mean squared
    /// error) and `grad_norm`; updates all trainable parameters.
    ///
    /// # Errors
    /// If the size does not suit the network.
    pub fn training(&self, batch: usize, size: [usize; 2], training: &Training) -> Result<Graph, Error> {
        let mut b = Builder::new();
        let y = self.on_inputs(&mut b, batch, size);
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

    fn on_inputs(&self, b: &mut Builder, batch: usize, size: [usize; 2]) -> Value {
        let x = b.input("x", Type::f32([batch, size[0], size[1], self.in_channels()]));
        let t = b.input("t", Type::f32([batch]));
        self.build(b, x, t, Extras::default())
    }
}
