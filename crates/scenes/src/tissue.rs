//! Tissue: nuclei of many sizes and shapes with chromatin inside (mottled, smooth, or with bright chromocentres), scattered or
//! crowded, over dim cytoplasm, with others out of focus.

use crate::canvas::Canvas;
use crate::cells::Nucleus;
use crate::dice::Dice;
use crate::optics;
use crate::plane::Plane;

/// Parameters shared by the nuclei of a scene.
struct Style {
    magnification: f64,
    radius: f64,
    sizes: f64,
    /// The share of the area that nuclei cover.
    cover: f64,
    long: f64,
    wavy: f64,
    spread: f64,
    /// How strong and how fine the chromatin's texture is.
    mottle: f64,
    grain: f64,
    /// Bright spots in a nucleus, at the most; dark ones.
    spots: usize,
    nucleoli: usize,
    /// Small bright bodies without texture, as dying or dividing cells.
    condensed: f64,
    cytoplasm: f64,
}

impl Style {
    fn draw(magnification: f64, dice: &mut Dice) -> Style {
        let m = magnification;
        let radius = dice.log_between(6.0, 24.0) * m.min(3.0);
        Style {
            magnification,
            radius,
            sizes: dice.between(0.05, 0.35),
            cover: dice.log_between(0.03, 0.6),
            long: dice.between(0.0, 0.6),
            wavy: dice.between(0.0, 0.12),
            spread: dice.between(0.1, 0.9),
            mottle: dice.between(0.0, 0.45),
            grain: radius * dice.log_between(0.06, 0.3),
            spots: if dice.chance(0.5) { 0 } else { dice.count(1, 9) },
            nucleoli: if dice.chance(0.5) { 0 } else { dice.count(1, 4) },
            condensed: if dice.chance(0.5) { 0.0 } else { dice.between(0.0, 0.2) },
            cytoplasm: if dice.chance(0.3) { 0.0 } else { dice.log_between(0.01, 0.25) },
        }
    }
}

pub(crate) fn paint(size: [usize; 3], dice: &mut Dice) -> Canvas {
    let m = optics::magnification(dice);
    let style = Style::draw(m, dice);
    let [_, height, width] = size;
    optics::image(size, m, dice, |dice| layer(height, width, &style, dice))
}

fn layer(height: usize, width: usize, style: &Style, dice: &mut Dice) -> Plane {
    let mut plane = Plane::new(height, width);
    let outline = Plane::smooth(height, width, dice, style.radius);
    // Chromatin has structure from its finest grain up to the size of a nucleus.
    let grain = Plane::field(height, width, dice, |s| {
        let below = libm::log2(style.grain / s).max(0.0);
        let above = libm::log2(2.0 * s / style.radius).max(0.0);
        libm::exp(-1.5 * (below * below + above * above))
    });
    let margin = 1.5 * style.radius;
    let area = (height as f64 + 2.0 * margin) * (width as f64 + 2.0 * margin);
    let count = style.cover * area / (std::f64::consts::PI * style.radius * style.radius);
    let crowd = Plane::smooth(height, width, dice, 4.0 * style.radius);
    let crowded = dice.between(0.0, 1.0);
    for number in 0..count.ceil() as usize + 1 {
        // The first is in the picture, so that there is something to see.
        let around = if number == 0 { 0.0 } else { margin };
        let y = dice.between(-around, height as f64 + around);
        let x = dice.between(-around, width as f64 + around);
        let here = plane.index([y, x]).map_or(0.0, |i| crowd.values[i]);
        if number > 0 && !dice.chance(libm::exp(crowded * (here - 1.0))) {
            continue;
        }
        let (nucleus, condensed) = nucleus([y, x], style, dice);
        // Nuclei of one layer seldom overlap.
        if is_free(&plane, &nucleus) || dice.chance(0.1) {
            let mottle = if condensed { 0.0 } else { style.mottle };
            let light = dice.lognormal(style.spread) * if condensed { 2.5 } else { 1.0 };
            let chromatin = Chromatin { style, outline: &outline, grain: &grain, mottle, light };
            chromatin.paint(&mut plane, &nucleus, dice);
        }
    }
    if style.cytoplasm > 0.0 {
        let haze = Plane::cloud(height, width, dice, 15.0 * style.magnification);
        let rough = dice.between(0.2, 1.0);
        let dim = plane.values.iter_mut().zip(&haze.values);
        dim.for_each(|(v, h)| *v += style.cytoplasm * libm::exp(rough * h));
    }
    plane
}

/// A nucleus, and whether it is condensed: small, long and bright.
fn nucleus(centre: [f64; 2], style: &Style, dice: &mut Dice) -> (Nucleus, bool) {
    let condensed = dice.chance(style.condensed);
    let radius = style.radius * dice.lognormal(style.sizes) * if condensed { 0.5 } else { 1.0 };
    let long = libm::exp(0.5 * style.long * dice.normals()[0].abs() + if condensed { 0.4 } else { 0.0 });
    let angle = dice.angle();
    let turn = [libm::sin(angle), libm::cos(angle)];
    (Nucleus { centre, radii: [radius / long, radius * long], turn }, condensed)
}

/// Whether nothing is painted yet at the centre and at eight places near the outline.
fn is_free(plane: &Plane, nucleus: &Nucleus) -> bool {
    let [sin, cos] = nucleus.turn;
    let [centre_y, centre_x] = nucleus.centre;
    let d = 0.5f64.sqrt();
    let around =
        [[0.0, 0.0], [1.0, 0.0], [d, d], [0.0, 1.0], [-d, d], [-1.0, 0.0], [-d, -d], [0.0, -1.0], [d, -d]];
    around.iter().all(|[v, u]| {
        let (v, u) = (0.85 * v * nucleus.radii[0], 0.85 * u * nucleus.radii[1]);
        let at = [centre_y + cos * v - sin * u, centre_x + sin * v + cos * u];
        plane.index(at).is_none_or(|i| plane.values[i] == 0.0)
    })
}

/// The inside of a nucleus.
struct Chromatin<'a> {
    style: &'a Style,
    outline: &'a Plane,
    grain: &'a Plane,
    mottle: f64,
    light: f64,
}

impl Chromatin<'_> {
    fn paint(&self, plane: &mut Plane, nucleus: &Nucleus, dice: &mut Dice) {
        let size = nucleus.radii[0].min(nucleus.radii[1]);
        let spot = |dice: &mut Dice, low: f64, high: f64, gain: f64| {
            let (a, r) = (dice.angle(), 0.75 * dice.between(0.0, 1.0).sqrt());
            let [sin, cos] = nucleus.turn;
            let u = [r * nucleus.radii[0] * libm::sin(a), r * nucleus.radii[1] * libm::cos(a)];
            let at =
                [nucleus.centre[0] + cos * u[0] - sin * u[1], nucleus.centre[1] + sin * u[0] + cos * u[1]];
            (at, size * dice.between(low, high), gain)
        };
        let mut spots: Vec<([f64; 2], f64, f64)> = vec![];
        for _ in 0..dice.count(0, self.style.spots) {
            let gain = dice.between(0.5, 2.0);
            spots.push(spot(dice, 0.08, 0.25, gain));
        }
        for _ in 0..dice.count(0, self.style.nucleoli) {
            let gain = -dice.between(0.2, 0.8);
            spots.push(spot(dice, 0.12, 0.3, gain));
        }
        let reach = 1.3 * nucleus.radii[0].max(nucleus.radii[1]) + 1.0;
        let range = |a: usize, n: usize| {
            let low = (nucleus.centre[a] - reach).max(0.0) as usize;
            low..((nucleus.centre[a] + reach + 1.0).max(0.0) as usize).min(n)
        };
        for y in range(0, plane.height) {
            for x in range(1, plane.width) {
                let i = y * plane.width + x;
                let p = [y as f64, x as f64];
                let inside = (1.0 + self.style.wavy * self.outline.values[i] - nucleus.radius(p)) * size;
                if inside <= 0.0 {
                    continue;
                }
                let mut inner = (1.0 + self.mottle * self.grain.values[i]).max(0.05);
                for (at, r, gain) in &spots {
                    let d2 = (p[0] - at[0]) * (p[0] - at[0]) + (p[1] - at[1]) * (p[1] - at[1]);
                    // A round body with a soft edge.
                    inner += gain * (1.5 - 1.5 * d2 / (r * r)).clamp(0.0, 1.0);
                }
                // Thinner towards the outline, as a flat body is.
                let thick = (0.5 + 0.5 * inside / (0.5 * size)).min(1.0);
                plane.values[i] += self.light * inner.max(0.02) * thick * inside.min(1.0);
            }
        }
    }
}
