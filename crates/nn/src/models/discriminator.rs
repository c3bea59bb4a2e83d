//! pix2pixHD's multi-scale patch discriminator (Wang et al. 2018), as in CytoDL, in 2-D and 3-D.
//!
//! It gets an image together with the image it was made from, and classifies every patch as real or generated. Each scale
//! has its own network, on images that are averaged down with 3 x 3 windows and a stride of two. Not a
//! [`Network`](super::Network): its output are the activations of every layer, which training compares, and it is not part
//! of a saved model. Parameters have CytoDL's names.

use crate::Error;
use crate::init::{Law, Param};
use crate::layers::{self, Layer, Scope};
use clearshot_graph::ops::{Geometry, PoolKind, Unary};
use clearshot_graph::{Builder, Type, Value};
use clearshot_tensor::Shape;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discriminator {
    pub scales: usize,
    /// Convolutions that halve the image, at each scale.
    pub layers: usize,
    /// Channels of the first; each further one has twice as many, up to eight times.
    pub filters: usize,
}

const KERNEL: usize = 4;
const SLOPE: f64 = 0.2;
const EPS: f64 = 1e-5;
const LAYER: Layer = Layer { bias: true, law: Law::Torch };

impl Discriminator {
    /// Pixels along each axis of the smallest image that every scale gives a patch of.
    pub fn least_size(&self) -> usize {
        // The two last convolutions take a pixel off each, and what is left is one or more.
        (3 << self.layers) << (self.scales - 1)
    }

    /// The activations of every layer, scale by scale, the last being logits of patches.
    pub fn features(&self, s: &mut Scope<'_>, given: Value, image: Value) -> Vec<Vec<Value>> {
        let mut x = s.b.concat_channels(&[given, image]);
        let mut scales = vec![];
        for scale in 0..self.scales {
            if scale > 0 {
                x = averaged(s.b, x);
            }
            scales.push(self.one_scale(&mut s.at(&format!("discriminators.{scale}.model")), x));
        }
        scales
    }

    fn one_scale(&self, s: &mut Scope<'_>, x: Value) -> Vec<Value> {
        let dims = layers::dims(s.b, x);
        let mut all = vec![];
        let mut h = x;
        for i in 0..=self.layers + 1 {
            let stride = if i < self.layers { 2 } else { 1 };
            let is_last = i == self.layers + 1;
            let out = if is_last { 1 } else { self.filters << i.min(3) };
            let mut block = s.at(&format!("block_{i}"));
            let geometry = Geometry::new(dims, stride, 1);
            h = layers::conv_by(&mut block.at("0"), h, out, [KERNEL; 3], geometry, LAYER);
            if i > 0 && !is_last {
                let [gamma, beta] = layers::no_affine(block.b, h);
                h = block.b.instance_norm(h, gamma, beta, EPS);
            }
            if !is_last {
                h = block.b.unary(Unary::LeakyRelu(SLOPE), h);
            }
            all.push(h);
        }
        all
    }

    /// Every parameter, for images of so many axes, and so many channels of both images together.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn parameters(&self, dims: usize, channels: usize) -> Result<Vec<Param>, Error> {
        let mut b = Builder::new();
        let sizes: Vec<usize> = [1].into_iter().chain(vec![self.least_size(); dims]).collect();
        let of = |channels: usize| Shape::new(&[&sizes[..], &[channels]].concat());
        let given = b.input("given", Type::f32(of(channels - 1)));
        let image = b.input("image", Type::f32(of(1)));
        let mut params = vec![];
        self.features(&mut Scope::new(&mut b, &mut params), given, image);
        b.finish()?;
        Ok(params)
    }
}

/// Means over windows of three pixels, two apart; at the edge, of the pixels that are there.
fn averaged(b: &mut Builder, x: Value) -> Value {
    let dims = layers::dims(b, x);
    let kernel = if dims == 2 { [1, 3, 3] } else { [3; 3] };
    let geometry = Geometry::new(dims, 2, 1);
    let sums = b.pool(x, PoolKind::Average, kernel, geometry);
    let one = b.scalar(1.0);
    let there = b.shape(x).with(0, 1).with(dims + 1, 1);
    let ones = b.broadcast(one, there);
    let share = b.pool(ones, PoolKind::Average, kernel, geometry);
    b.div(sums, share)
}
