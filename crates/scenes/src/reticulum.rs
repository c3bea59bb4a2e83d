//! Reticulum: the endoplasmic reticulum, a network of thin tubules with open and closed meshes, sheets around the nucleus, inside
//! cells.

use crate::canvas::Canvas;
use crate::cells::Cells;
use crate::dice::Dice;
use crate::optics;
use crate::plane::{Plane, bell};
use crate::voronoi::{Shape, Voronoi};

const LEVELS: usize = 509;

/// Parameters of the network of a scene.
struct Style {
    magnification: f64,
    shape: Shape,
    tubule: f64,
    /// Share of meshes' sides that are missing.
    open: f64,
    /// How much is sheet, and how bright.
    sheets: f64,
    sheet: f64,
    gather: f64,
    cytoplasm: f64,
    nucleus: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        Style {
            magnification,
            shape: Shape {
                spacing: (dice.log_between(6.0, 16.0) * m).max(4.0),
                jitter: 1.0,
                warp: [dice.between(0.1, 0.4), dice.between(1.0, 3.0)],
                stretch: dice.log_between(1.0, 2.0),
                weights: dice.between(0.0, 0.5),
            },
            tubule: dice.log_between(0.5, 1.1) * libm::pow(m, 0.8),
            open: dice.between(0.0, 0.45),
            sheets: dice.between(-1.5, 1.5),
            sheet: dice.between(0.3, 1.0),
            gather: dice.between(0.0, 1.0),
            cytoplasm: dice.log_between(0.02, 0.4),
            nucleus: dice.log_between(0.02, 0.3),
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let diameter = dice.log_between(90.0, 220.0) * m.min(2.5);
    let cells = Cells::draw(size[1], size[2], diameter, dice);
    let style = Style::draw(m, dice);
    optics::image(size, m, dice, |dice| layer(&cells, &style, dice))
}

fn layer(cells: &Cells, style: &Style, dice: &mut Dice) -> Plane {
    let (height, width) = (cells.height, cells.width);
    let m = style.magnification;
    let mesh = Voronoi::draw(height, width, &style.shape, dice);
    let bright = Plane::cloud(height, width, dice, 15.0 * m);
    let grain = Plane::grain(height, width, dice, 2.5 * m);
    let spread = dice.between(0.1, 0.6);
    let levels: Vec<f64> =
        (0..LEVELS).map(|_| if dice.chance(style.open) { 0.0 } else { dice.lognormal(spread) }).collect();
    cells.fill(|i, p, cell, edge| {
        let r = cell.nucleus.radius(p);
        if r < 1.0 {
            return cell.brightness * style.nucleus * (1.0 + 0.15 * grain.values[i]).max(0.0);
        }
        let far = if r.is_finite() { r - 1.0 } else { 1.0 };
        let u = mesh.wall.values[i] / style.tubule;
        let tubule = levels[mesh.wall_number(i, LEVELS)] * bell(u);
        // The envelope around the nucleus, and sheets that grow scarce away from it.
        let shell = (far * cell.nucleus.radii[0] - style.tubule) / style.tubule;
        let envelope = if r.is_finite() { bell(shell) } else { 0.0 };
        let sheet = (2.0 * (bright.values[i] + style.sheets - 2.0 * far)).clamp(0.0, 1.0);
        let sheet = style.sheet * sheet * (1.0 + 0.25 * grain.values[i]).max(0.0);
        let near = libm::exp(-style.gather * far) * (edge / (4.0 * m)).min(1.0);
        let network = tubule.max(sheet).max(0.8 * envelope) * libm::exp(0.3 * bright.values[i]);
        cell.brightness * (network * near + style.cytoplasm * (1.0 + 0.3 * bright.values[i]).max(0.1))
    })
}
