//! A PSF from an image of beads: find them, cut them out, centre them, average.

use super::{Background, Psf, less_background};
use crate::error::{PhysicsError, require, require_length};
use crate::grid::{self, for_each};
use clearshot_tensor::{DType, Shape, Tensor};

/// How beads are detected.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// The radius of a bead in pixels around its brightest pixel, along (Z,) Y, X.
    pub radius: Vec<usize>,
    /// The minimum height of a bead above the background, as a fraction of the brightest pixel's height.
    pub least: f64,
    /// The background subtracted first.
    pub background: Background,
}

/// The average of the beads of an image, and their number. A bead is a pixel that is not exceeded by any within half
/// the radius. A bead is left out if its box extends beyond the image, or if another bead is closer than two radii,
/// because their light overlaps.
///
/// # Errors
/// If the image is an 8-bit image, the search is impossible, or there is no bead.
pub fn average(image: &Tensor, search: &Search) -> Result<(Psf, usize), PhysicsError> {
    let (shape, dtype) = (image.shape(), image.dtype());
    if matches!(dtype, DType::U8 | DType::I8) {
        return Err(PhysicsError::EightBitPsf { dtype });
    }
    grid::check("an image of beads", shape)?;
    require_length("the radius of a bead", search.radius.len(), shape.rank())?;
    require(
        search.least > 0.0 && search.least <= 1.0,
        "the least height of a bead",
        search.least,
        "a share above 0, at most 1",
    )?;
    let values = less_background(image.to_f64(), search.background)?;
    if let Some(index) = values.iter().position(|v| !v.is_finite()) {
        return Err(PhysicsError::Pixel {
            name: "the image of beads",
            index,
            got: values[index],
            needed: "a finite value",
        });
    }
    let beads = find(&values, shape, search);
    let lonely = |b: &Vec<usize>| {
        let near = |o: &&Vec<usize>| (0..b.len()).all(|a| o[a].abs_diff(b[a]) <= 2 * search.radius[a]);
        beads.iter().filter(near).count() == 1
    };
    let inside =
        |b: &Vec<usize>| (0..b.len()).all(|a| b[a] >= search.radius[a] && b[a] + search.radius[a] < shape[a]);
    let chosen: Vec<&Vec<usize>> = beads.iter().filter(|b| inside(b) && lonely(b)).collect();
    if chosen.is_empty() {
        return Err(PhysicsError::TooFew { what: "beads that stand alone", got: 0, needed: 1 });
    }
    let size = search.radius.iter().map(|r| 2 * r + 1).collect::<Vec<_>>();
    let size = Shape::new(&size);
    let strides = shape.strides();
    let mut sum = vec![0.0; size.len()];
    for bead in &chosen {
        let mut cut = Vec::with_capacity(size.len());
        for_each(size, |i| {
            let at = (0..i.len()).map(|a| (bead[a] + i[a] - search.radius[a]) * strides[a]).sum::<usize>();
            cut.push(values[at]);
        });
        let centred = Psf::new(size, cut)?.centred()?;
        sum.iter_mut().zip(centred.values()).for_each(|(s, v)| *s += v);
    }
    Ok((Psf::new(size, sum)?.centred()?, chosen.len()))
}

/// The brightest pixels within half a radius, of equal ones the first.
fn find(values: &[f64], shape: Shape, search: &Search) -> Vec<Vec<usize>> {
    let least = search.least * values.iter().copied().fold(0.0, f64::max);
    let strides = shape.strides();
    let reach: Vec<usize> = search.radius.iter().map(|r| r.div_ceil(2)).collect();
    let boxed = Shape::new(&reach.iter().map(|r| 2 * r + 1).collect::<Vec<_>>());
    let mut found = Vec::new();
    let mut here = 0;
    for_each(shape, |i| {
        let at = here;
        here += 1;
        if values[at] < least || values[at] == 0.0 {
            return;
        }
        let mut brightest = true;
        for_each(boxed, |j| {
            let place = |a: usize| (i[a] + j[a]).checked_sub(reach[a]).filter(|&p| p < shape[a]);
            let other: Option<usize> = (0..j.len()).map(|a| place(a).map(|p| p * strides[a])).sum();
            if let Some(other) = other {
                brightest &= values[other] < values[at] || (values[other] == values[at] && other >= at);
            }
        });
        if brightest {
            found.push(i.to_vec());
        }
    });
    found
}
