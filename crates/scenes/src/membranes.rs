//! Membranes: the walls of cells in a tissue, a honeycomb with walls of varying thickness and brightness, bright junctions,
//! and an edge of the tissue.

use crate::canvas::Canvas;
use crate::dice::Dice;
use crate::optics;
use crate::plane::{Plane, bell};
use crate::voronoi::{Shape, Voronoi};

/// Different brightnesses of walls and of the insides of cells.
const LEVELS: usize = 509;

/// Parameters shared by the membranes of a scene.
struct Style {
    magnification: f64,
    shape: Shape,
    /// Half the thickness of a wall in pixels.
    wall: f64,
    spread: f64,
    junction: f64,
    inside: f64,
    nucleus: f64,
    /// How much of the picture is tissue, as a limit on a standard normal field.
    tissue: f64,
    rim: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        let spacing = dice.log_between(14.0, 45.0) * m.min(3.0);
        Style {
            magnification,
            shape: Shape {
                spacing,
                jitter: dice.between(0.4, 1.0),
                warp: [dice.between(0.03, 0.25), dice.between(0.6, 4.0)],
                stretch: dice.log_between(1.0, 2.5),
                weights: dice.between(0.0, 0.5),
            },
            wall: dice.log_between(0.4, 1.6) * libm::pow(m, 0.7),
            spread: dice.between(0.1, 0.8),
            junction: if dice.chance(0.4) { 0.0 } else { dice.between(0.3, 3.0) },
            inside: dice.log_between(0.01, 0.3),
            nucleus: if dice.chance(0.6) { 0.0 } else { dice.between(0.05, 0.6) },
            tissue: if dice.chance(0.3) { -9.0 } else { dice.between(-1.2, 0.5) },
            rim: if dice.chance(0.5) { 0.0 } else { dice.between(0.3, 2.0) },
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let style = Style::draw(m, dice);
    let [_, height, width] = size;
    let extent = Plane::smooth(height, width, dice, 60.0 * m);
    // Some of the picture is tissue, however the field fell.
    let top = extent.values.iter().copied().fold(0.0, f64::max);
    let style = Style { tissue: style.tissue.min(0.5 * top), ..style };
    optics::image(size, m, dice, |dice| layer(&style, &extent, dice))
}

fn layer(style: &Style, extent: &Plane, dice: &mut Dice) -> Plane {
    let (height, width) = (extent.height, extent.width);
    let m = style.magnification;
    let cells = Voronoi::draw(height, width, &style.shape, dice);
    let bright = Plane::cloud(height, width, dice, 25.0 * m);
    let grain = Plane::grain(height, width, dice, 2.0 * m);
    let levels: Vec<f64> = (0..LEVELS).map(|_| dice.lognormal(style.spread)).collect();
    let patchy = dice.between(0.2, 0.8);
    // The slope of the field that says where tissue is, to turn it into pixels.
    let per_pixel = 1.0 / (25.0 * m);
    Plane::from_fn(height, width, |y, x| {
        let i = y * width + x;
        let inside = (extent.values[i] - style.tissue) / per_pixel;
        if inside < 0.0 {
            return 0.0;
        }
        let (wall, junction) = (cells.wall.values[i], cells.junction.values[i]);
        let number = cells.wall_number(i, LEVELS);
        let thickness = style.wall * (0.6 + 0.5 * levels[(number + 7) % LEVELS].min(3.0));
        let u = wall / thickness;
        let corner = junction / (2.0 * thickness);
        let membrane = bell(u)
            * (levels[number] + style.junction * bell(corner))
            * (1.0 + 0.3 * grain.values[i]).max(0.1);
        let own = levels[cells.ids[i][0] as usize % LEVELS];
        let deep = (wall / (0.18 * style.shape.spacing) - 1.0).clamp(0.0, 1.0);
        let content = own * (style.inside + style.nucleus * deep * (1.0 + 0.2 * grain.values[i]));
        let from_rim = (inside - 2.0 * style.wall) / (2.0 * style.wall);
        let rim = style.rim * (1.0 - from_rim * from_rim).max(0.0);
        (membrane + content + rim) * libm::exp(patchy * bright.values[i]) * inside.min(1.0)
    })
}
