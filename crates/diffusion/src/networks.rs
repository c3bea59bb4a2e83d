//! The networks of this project as [`Network`]s: which conditions each accepts.

use crate::denoiser::Condition;
use crate::precondition::Network;
use clearshot_graph::{Builder, Value};
use clearshot_nn::models::unet2d::{Extras, UNet2D};

impl Network for UNet2D {
    /// For inference: nothing is dropped.
    fn build(&self, b: &mut Builder, x: Value, time: Value, given: &Condition) -> Value {
        if given.vector.is_some() || given.context.is_some() {
            return b.refuse("unet2d", "it takes no vector and no context as condition".into());
        }
        UNet2D::build(self, b, x, time, Extras { class: given.class, dropout_key: None })
    }
}
