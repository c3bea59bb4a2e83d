//! The microscope image of a specimen in three dimensions.
//!
//! The specimen is convolved with the PSF of a wide-field microscope (Born and Wolf) or a confocal one (the product of the
//! excitation and detection PSFs, with a little of the wide-field one that passes the pinhole), on a grid at least as fine
//! as 1.5 pixels along Z, of which every n-th plane is a plane of the stack: steps along Z are 1 to 4 pixels. The grid is a
//! little larger than the image and periodic, so that the specimen does not end at the edges of the image.

use super::solid::Solid;
use crate::SceneError;
use crate::canvas::Canvas;
use crate::dice::Dice;
use clearshot_physics::psf::Optics;
use clearshot_physics::{Boundary, Operator, Psf};

/// Pixels, and planes of the fine grid, that are painted beyond what is shown, on either side.
const MARGIN: [usize; 3] = [6, 8, 8];
/// Pixels of the PSF to either side, and planes of the fine grid.
const REACH: usize = 20;
/// Values are rounded to this many steps: the last bits of a Fourier transform are not the same on every processor.
const STEPS: f64 = 65536.0;

/// See the module.
pub(super) struct Microscope {
    confocal: bool,
    optics: Optics,
    /// Pixels between the planes of the stack, and planes of the fine grid for each of them.
    step: f64,
    fine: usize,
    /// The share of light that passes a confocal microscope's pinhole from everywhere.
    leak: f64,
    compressed: f64,
    background: f64,
    bright: f64,
}

impl Microscope {
    pub fn draw(magnification: f64, dice: &mut Dice) -> Microscope {
        let confocal = dice.chance(0.5);
        let aperture = dice.between(0.7, 1.4);
        let refractive_index = if aperture > 1.2 { 1.515 } else { dice.between(1.33, 1.4) };
        // Of the focus in the plane: its full width at half maximum is half a wavelength over the aperture.
        let width = (2.0 * libm::pow(magnification, 0.4) * dice.lognormal(0.3)).clamp(1.5, 6.0);
        let wavelength = width * aperture / 0.51;
        let step = dice.log_between(1.0, 4.0);
        Microscope {
            confocal,
            optics: Optics { wavelength, numerical_aperture: aperture, refractive_index },
            step,
            fine: (step / 1.5).ceil() as usize,
            leak: dice.between(-0.02, 0.05).max(0.0),
            compressed: if dice.chance(0.35) { 0.0 } else { dice.log_between(0.2, 3.0) },
            background: if dice.chance(0.3) { 0.0 } else { dice.log_between(0.003, 0.15) },
            bright: 1.0 - dice.log_between(3e-5, 3e-3),
        }
    }

    /// An empty grid for a stack of this size.
    pub fn stage(&self, [planes, height, width]: [usize; 3]) -> Solid {
        let shown = [planes * self.fine, height, width];
        let size = [0, 1, 2].map(|a| (shown[a] + 2 * MARGIN[a]).max(2 * REACH + 1));
        Solid::new(size, self.step / self.fine as f64)
    }

    /// The PSF on the fine grid.
    pub fn psf(&self) -> Result<Psf, SceneError> {
        let voxel = [self.step / self.fine as f64, 1.0, 1.0];
        let size = [2 * REACH + 1; 3];
        let detection = Psf::born_wolf(&self.optics, voxel, size)?;
        if !self.confocal {
            return Ok(detection);
        }
        // Excitation has the shorter wavelength.
        let excitation = Optics { wavelength: 0.93 * self.optics.wavelength, ..self.optics };
        let excitation = Psf::born_wolf(&excitation, voxel, size)?;
        let product: Vec<f64> =
            detection.values().iter().zip(excitation.values()).map(|(a, b)| a * b).collect();
        let sum: f64 = product.iter().sum();
        let both = product.iter().zip(detection.values()).map(|(p, w)| p / sum + self.leak * w).collect();
        Ok(Psf::new(size, both)?)
    }

    /// The stack that it takes of a specimen, with values in [0, 1].
    pub fn look(&self, specimen: Solid, size: [usize; 3]) -> Result<Canvas, SceneError> {
        let grid = specimen.canvas.size;
        let operator = Operator::blur(&grid[..], &self.psf()?, Boundary::Periodic)?;
        let seen = operator.apply(&specimen.canvas.values)?;
        let mut canvas = Canvas::new(size);
        let [_, height, width] = size;
        for (row, out) in canvas.values.chunks_mut(width).enumerate() {
            let z = row / height * self.fine + MARGIN[0];
            let y = row % height + MARGIN[1];
            let from = (z * grid[1] + y) * grid[2] + MARGIN[2];
            out.iter_mut().zip(&seen[from..]).for_each(|(o, v)| *o = v.max(0.0));
        }
        canvas.normalise(self.bright);
        let (b, c) = (self.background, self.compressed);
        for v in &mut canvas.values {
            let light = *v * (1.0 + c) / (1.0 + c * *v);
            *v = ((light + b * (1.0 - light)).clamp(0.0, 1.0) * STEPS).round() / STEPS;
        }
        Ok(canvas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_tensor::noise::Key;

    fn microscopes() -> impl Iterator<Item = Microscope> {
        (0..6).map(|i| Microscope::draw(1.0, &mut Dice::new(Key { seed: 3, step: i, stream: 0 })))
    }

    /// The focus is as wide as the optics say: half the wavelength over the aperture in the plane, longer along Z, and
    /// narrower by the square root of two or so in a confocal microscope.
    #[test]
    fn the_psf_has_the_width_of_its_optics() {
        for m in microscopes() {
            let [axial, .., lateral] = m.psf().unwrap().fwhm()[..] else { panic!("three axes") };
            let expected = 0.51 * m.optics.wavelength / m.optics.numerical_aperture;
            let share = lateral / expected;
            let range = if m.confocal { 0.62..0.85 } else { 0.93..1.08 };
            assert!(range.contains(&share), "confocal {}: {lateral} for {expected}", m.confocal);
            assert!(axial * m.step / m.fine as f64 > 1.5 * lateral, "{axial} {lateral}");
        }
    }

    /// A point in the middle is brightest in its own plane, and planes of the stack are `step` pixels apart.
    #[test]
    fn a_point_is_where_it_was_put() {
        for m in microscopes() {
            let size = [9, 24, 24];
            let mut stage = m.stage(size);
            let plane = MARGIN[0] + 5 * m.fine;
            let at = [plane as f64 * stage.step, (MARGIN[1] + 11) as f64, (MARGIN[2] + 7) as f64];
            stage.dot(at, 1.0);
            let seen = Microscope { background: 0.0, bright: 1.0, ..m }.look(stage, size).unwrap();
            let brightest =
                (0..seen.values.len()).max_by(|&a, &b| seen.values[a].total_cmp(&seen.values[b])).unwrap();
            assert_eq!(brightest, (5 * 24 + 11) * 24 + 7);
            assert_eq!(seen.values[brightest], 1.0);
        }
    }
}
