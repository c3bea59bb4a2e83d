//! The networks of EDM (Karras et al. 2022), with their preconditioning: DDPM++ and NCSN++ of Song et al. (`SongUNet`) and
//! ADM of Dhariwal and Nichol (`DhariwalUNet`).
//!
//! All three are one list of layers, which [`EdmConfig::resolve`] makes and the builder follows. They differ in a handful
//! of choices that the blocks share (`Style`). Parameters have the names of the authors' files, which contain the nominal
//! size of each level (`model.enc.16x16_block0`); images of other sizes are accepted too. The output is the denoised image;
//! with improved DDPM's preconditioning the network has twice as many channels, of which the second half, the learned
//! variance, is not part of the output. `condition_channels` is ours: noise-free channels next to the noisy image, the
//! input `condition`.

mod block;
mod config;
mod plan;

pub use config::EdmConfig;

use crate::init::{Init, Law};
use crate::layers::{self, Layer, Scope};
use crate::models::network::{Given, Network, Port, multiples};
use crate::precondition::Precondition;
use block::Style;
use clearshot_graph::Value;
use clearshot_graph::ops::Unary;
use clearshot_tensor::Shape;
use plan::{Kind, Piece};

/// Every choice made and checked; see [`EdmConfig::resolve`].
#[derive(Clone, Debug, PartialEq)]
pub struct Edm {
    precondition: Precondition,
    channels: usize,
    /// Clean channels beside the noisy image.
    condition: usize,
    levels: usize,
    embedding: Embedding,
    style: Style,
    encoder: Vec<Piece>,
    decoder: Vec<Piece>,
}

/// How the level, labels and augmentations become one vector.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Embedding {
    kind: Family,
    /// Random frequencies of NCSN++; otherwise a position code.
    fourier: bool,
    /// Width of the level's code.
    noise: usize,
    /// Width of the result.
    width: usize,
    labels: usize,
    augment: usize,
}

/// Whose network it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Song,
    Dhariwal,
}

/// The standard deviation of NCSN++'s random frequencies.
const FOURIER_SCALE: f32 = 16.0;
const PERIOD: f64 = 10_000.0;

impl Embedding {
    fn add(&self, s: &mut Scope<'_>, noise: Value, given: &Given) -> Value {
        let song = self.kind == Family::Song;
        let law = if song { Law::Glorot(1.0) } else { Law::Torch };
        let layer = Layer { bias: true, law };
        let mut h = if self.fourier {
            fourier(&mut s.at("map_noise"), noise, self.noise)
        } else {
            // The last frequency of DDPM++ is the smallest; ADM stops one short of it.
            s.b.sinusoidal_embedding(noise, self.noise, !song, if song { 1.0 } else { 0.0 }, PERIOD)
        };
        if let (true, Some(labels)) = (song, given.get("labels")) {
            let labels = self.labels(s, labels, layer);
            h = s.b.add(h, labels);
        }
        if self.augment > 0 {
            let layer = Layer { bias: false, law: if song { law } else { Law::Zero } };
            let mut s = s.at("map_augment");
            match given.get("augment") {
                Some(augment) => {
                    let augment = layers::linear_by(&mut s, augment, self.noise, layer);
                    h = s.b.add(h, augment);
                }
                None => layers::declare_linear(&mut s, self.augment, self.noise, layer),
            }
        }
        let h = layers::linear_by(&mut s.at("map_layer0"), h, self.width, layer);
        let h = s.b.silu(h);
        let mut h = layers::linear_by(&mut s.at("map_layer1"), h, self.width, layer);
        if let (false, Some(labels)) = (song, given.get("labels")) {
            let labels = self.labels(s, labels, Layer { bias: false, law: Law::Normal(1.0) });
            h = s.b.add(h, labels);
        }
        s.b.silu(h)
    }

    /// What labels add: in DDPM++ to the level's code, in ADM to the embedding.
    fn labels(&self, s: &mut Scope<'_>, labels: Value, layer: Layer) -> Value {
        let mut s = s.at("map_label");
        match self.kind {
            Family::Song => {
                let scaled = s.b.mul_scalar(labels, (self.labels as f64).sqrt());
                layers::linear_by(&mut s, scaled, self.noise, layer)
            }
            Family::Dhariwal => layers::linear_by(&mut s, labels, self.width, layer),
        }
    }
}

fn fourier(s: &mut Scope<'_>, noise: Value, width: usize) -> Value {
    let rates = s.fixed("freqs", [width / 2], Init::Normal(FOURIER_SCALE));
    let turns = s.b.mul_scalar(rates, std::f64::consts::TAU);
    let n = s.b.shape(noise).len();
    let column = s.b.reshape(noise, [n, 1]);
    let angle = s.b.mul(column, turns);
    let (sin, cos) = (s.b.unary(Unary::Sin, angle), s.b.unary(Unary::Cos, angle));
    s.b.concat(&[sin, cos], 1)
}

impl Edm {
    fn raw(&self, s: &mut Scope<'_>, x: Value, noise: Value, given: &Given) -> Value {
        let with = block::With { emb: self.embedding.add(s, noise, given), key: given.key() };
        let x = match given.get("condition") {
            Some(condition) => s.b.concat_channels(&[x, condition]),
            None => x,
        };
        let skips = self.encode(s, x, with);
        self.decode(s, skips, with)
    }

    /// What the way up will need; the last is the smallest image.
    fn encode(&self, s: &mut Scope<'_>, x: Value, with: block::With) -> Vec<Value> {
        let mut skips: Vec<Value> = vec![];
        // The image itself, smaller with every level: NCSN++ adds it to the features again.
        let (mut h, mut aux) = (x, x);
        for piece in &self.encoder {
            let mut s = s.at(&format!("enc.{}", piece.name));
            match piece.kind {
                Kind::Conv { out } => {
                    h = block::conv(&mut s, h, out, 3, self.style.plain());
                    skips.push(h);
                }
                Kind::Block(block) => {
                    h = block.add(&mut s, h, with, &self.style);
                    skips.push(h);
                }
                Kind::AuxDown => aux = self.style.fir.down(&mut s, aux),
                Kind::AuxSkip { out } => {
                    let more = block::conv(&mut s, aux, out, 1, self.style.plain());
                    h = s.b.add(h, more);
                    *skips.last_mut().expect("a level begins with a block") = h;
                }
                Kind::AuxResidual { out } => {
                    let more = self.style.fir.conv_down(&mut s, aux, out, self.style.plain());
                    let sum = s.b.add(h, more);
                    h = s.b.mul_scalar(sum, std::f64::consts::FRAC_1_SQRT_2);
                    aux = h;
                    *skips.last_mut().expect("a level begins with a block") = h;
                }
                Kind::AuxUp | Kind::AuxOut | Kind::Out => unreachable!("pieces of the way up"),
            }
        }
        skips
    }

    fn decode(&self, s: &mut Scope<'_>, mut skips: Vec<Value>, with: block::With) -> Value {
        let mut h = skips[skips.len() - 1];
        // The image so far, larger with every level.
        let mut image: Option<Value> = None;
        for piece in &self.decoder {
            let path = format!("dec.{}", piece.name);
            match piece.kind {
                Kind::Block(block) => {
                    if s.b.channels(h) != block.from {
                        let skip = skips.pop().expect("the way down keeps one for every block");
                        h = s.b.concat_channels(&[h, skip]);
                    }
                    h = block.add(&mut s.at(&path), h, with, &self.style);
                }
                Kind::AuxUp => image = image.map(|y| self.style.fir.up(&mut s.at(&path), y)),
                Kind::AuxOut => {
                    let y = self.to_image(s, h, [format!("{path}_norm"), format!("{path}_conv")]);
                    image = Some(image.map_or(y, |before| s.b.add(y, before)));
                }
                Kind::Out => image = Some(self.to_image(s, h, ["out_norm".into(), "out_conv".into()])),
                Kind::Conv { .. } | Kind::AuxDown | Kind::AuxSkip { .. } | Kind::AuxResidual { .. } => {
                    unreachable!("pieces of the way down")
                }
            }
        }
        image.expect("the way up ends in an image")
    }

    fn to_image(&self, s: &mut Scope<'_>, h: Value, [norm, conv]: [String; 2]) -> Value {
        let h = block::norm(&mut s.at(&norm), h, self.style.eps);
        let h = s.b.silu(h);
        block::conv(&mut s.at(&conv), h, self.outputs(), 3, self.style.quiet())
    }

    /// Channels of the raw network.
    fn outputs(&self) -> usize {
        if matches!(self.precondition, Precondition::Iddpm { .. }) {
            2 * self.channels
        } else {
            self.channels
        }
    }

    fn multiple(&self) -> usize {
        1 << (self.levels - 1)
    }
}

impl Network for Edm {
    fn in_channels(&self) -> usize {
        self.channels
    }

    fn out_channels(&self) -> usize {
        self.channels
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let e = &self.embedding;
        let mut ports = vec![Port::scalar("sigma", image)];
        if e.labels > 0 {
            ports.push(Port::vector("labels", image, e.labels));
        }
        if e.augment > 0 {
            ports.push(Port::vector("augment", image, e.augment).optional());
        }
        if self.condition > 0 {
            let shape = image.with(image.rank() - 1, self.condition);
            ports.push(Port::new("condition", clearshot_graph::Type::f32(shape)));
        }
        ports
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
        let mut s = s.at("model");
        let (x, sigma) = (given.x(), given.need("sigma"));
        let c = self.precondition.coefficients(s.b, sigma);
        let input = c.network_input(s.b, x);
        let raw = self.raw(&mut s, input, c.noise, given);
        let raw = match self.outputs() > self.channels {
            true => s.b.slice(raw, s.b.shape(raw).rank() - 1, 0, self.channels),
            false => raw,
        };
        c.denoised(s.b, x, raw)
    }
}
