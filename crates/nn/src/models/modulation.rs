//! Conditioning of this project's own networks: the time `t` and, if there is one, a vector (`vector`, see
//! [`crate::acquisition`]). Their sum modulates every residual block: it scales and shifts the normalised features (FiLM),
//! so the vector acts wherever the time does.

use crate::Error;
use crate::layers::{self, Conditions, ResnetStyle, Scope};
use crate::models::config::{count, divides};
use crate::models::network::{Given, Port};
use clearshot_graph::Value;
use clearshot_graph::ops::Unary;
use clearshot_tensor::Shape;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Modulation {
    /// Width of the time's code; the embedding has four times as much.
    pub code: usize,
    /// Values of the vector; 0 for none.
    pub vector: usize,
}

const PERIOD: f64 = 10_000.0;

impl Modulation {
    /// # Errors
    /// If the vector is wider than any.
    pub fn new(code: usize, vector: usize) -> Result<Modulation, Error> {
        if vector > 0 {
            count("vector_dim", vector, 1 << 16)?;
        }
        Ok(Modulation { code, vector })
    }

    pub fn ports(&self, image: Shape) -> Vec<Port> {
        let vector = (self.vector > 0).then(|| Port::vector("vector", image, self.vector));
        [Port::scalar("t", image)].into_iter().chain(vector).collect()
    }

    pub fn width(&self) -> usize {
        4 * self.code
    }

    /// The embedding `[N, E]`, not activated.
    pub fn embed(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let code = s.b.sinusoidal_embedding(given.need("t"), self.code, true, 0.0, PERIOD);
        let emb = layers::time_mlp(&mut s.at("time_embedding"), code, self.width());
        match given.get("vector") {
            None => emb,
            Some(vector) => {
                let more = layers::time_mlp(&mut s.at("vector_embedding"), vector, self.width());
                s.b.add(emb, more)
            }
        }
    }

    /// The inputs of residual blocks.
    pub fn conditions(s: &mut Scope<'_>, emb: Value) -> Conditions {
        Conditions { emb: s.b.silu(emb), key: None }
    }
}

/// The residual blocks of our own networks.
///
/// # Errors
/// If the groups do not divide the channels.
pub(super) fn style(groups: usize, channels: &[usize]) -> Result<ResnetStyle, Error> {
    channels.iter().try_for_each(|&c| divides("groups", groups, c))?;
    Ok(ResnetStyle { groups, eps: 1e-5, act: Unary::Silu, scale_shift: true, dropout: 0.0 })
}
