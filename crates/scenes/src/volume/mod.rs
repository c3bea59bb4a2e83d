//! Stacks: specimens with structure in three dimensions, through the PSF of a microscope and with its steps along Z.
//!
//! The same kinds of scenes as for planes, painted as bodies: chains and tubules that bend in space ([`walks`]), nuclei and
//! vesicles ([`bodies`]), walls and networks between random centres ([`walls`]). Every scene draws its magnification, its
//! style and its microscope ([`microscope`]).

mod bodies;
mod microscope;
mod solid;
mod walks;
mod walls;

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::{Scene, SceneError, optics};
use microscope::Microscope;
use solid::{Lattice, Solid};

/// A stack of one of the varied kinds of scenes.
pub(crate) fn paint(scene: Scene, size: [usize; 3], dice: &mut Dice) -> Result<Canvas, SceneError> {
    let magnification = optics::magnification(dice).min(2.5);
    let microscope = Microscope::draw(magnification, dice);
    let mut solid = microscope.stage(size);
    match scene {
        Scene::Fibres => walks::fibres(&mut solid, magnification, dice),
        Scene::Mitochondria => walks::mitochondria(&mut solid, magnification, dice),
        Scene::Membranes => walls::membranes(&mut solid, magnification, dice),
        Scene::Reticulum => walls::reticulum(&mut solid, magnification, dice),
        Scene::Vesicles => bodies::vesicles(&mut solid, magnification, dice),
        Scene::Tissue => bodies::nuclei(&mut solid, magnification, dice),
        _ => textures(&mut solid, magnification, dice),
    }
    haze(&mut solid, magnification, dice);
    microscope.look(solid, size)
}

/// Light between the structures: cytoplasm of uneven thickness, a share of the structures' own.
fn haze(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    if dice.chance(0.25) {
        return;
    }
    let mean = solid.canvas.values.iter().sum::<f64>() / solid.canvas.values.len() as f64;
    let level = mean * dice.log_between(0.03, 1.0);
    let thick = Lattice::draw(solid.extent(), dice.log_between(15.0, 60.0) * magnification, dice);
    let uneven = dice.between(0.2, 0.9);
    solid.fill(|_, p| level * libm::exp(uneven * thick.at(p)));
}

/// Random fields of two scales through a curve: clouds, or patches with edges.
fn textures(solid: &mut Solid, magnification: f64, dice: &mut Dice) {
    let fine = dice.log_between(2.0, 8.0) * magnification;
    let fields = [fine, 3.0 * fine].map(|scale| Lattice::draw(solid.extent(), scale, dice));
    let (share, contrast) = (dice.between(0.2, 0.8), dice.between(0.4, 1.5));
    let value = |p| share * fields[0].at(p) + (1.0 - share) * fields[1].at(p);
    // There is a patch in the middle.
    let most = value(solid.middle()) - 0.2;
    let patches = dice.chance(0.5).then(|| (dice.between(-0.3, 1.2).min(most), dice.log_between(2.0, 20.0)));
    solid.fill(|_, p| {
        let v = value(p);
        match patches {
            Some((limit, sharp)) => (sharp * (v - limit)).clamp(0.0, 1.0) * (1.0 + 0.3 * v).max(0.1),
            None => libm::exp(contrast * v),
        }
    });
}
