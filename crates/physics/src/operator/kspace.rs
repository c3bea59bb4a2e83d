//! The sampling of an MR scanner: the Fourier transform of an image (k-space), of which some rows are read.
//!
//! The transform is numpy's `fft2` with `norm="ortho"`, so it preserves norms, and the adjoint is the inverse transform
//! of the samples with zeros elsewhere. The mask has the rows in `fft2`'s order: row 0 is the mean along Y, and low
//! frequencies are at both ends.

use super::fourier::{Side, transform};
use crate::error::{PhysicsError, require_length};
use crate::grid;
use clearshot_tensor::Shape;
use clearshot_tensor::noise::Key;
use rustfft::num_complex::Complex;

/// See the module.
pub struct KSpace {
    size: [usize; 2],
    read: Vec<bool>,
    plan: Side<f64>,
}

impl KSpace {
    /// # Errors
    /// If there are no pixels, or the mask does not have one value per row.
    pub fn new(size: [usize; 2], read: &[bool]) -> Result<KSpace, PhysicsError> {
        grid::check("an image", Shape::new(&size))?;
        require_length("a mask of rows", read.len(), size[0])?;
        Ok(KSpace { size, read: read.to_vec(), plan: Side::plan([1, size[0], size[1]]) })
    }

    /// Every row.
    ///
    /// # Errors
    /// If there are no pixels.
    pub fn whole(size: [usize; 2]) -> Result<KSpace, PhysicsError> {
        KSpace::new(size, &vec![true; size[0]])
    }

    /// The rows that are read.
    pub fn read(&self) -> &[bool] {
        &self.read
    }

    /// The samples of an image, zero for rows that are not read.
    ///
    /// # Errors
    /// If the image has another number of pixels.
    pub fn apply(&self, image: &[Complex<f64>]) -> Result<Vec<Complex<f64>>, PhysicsError> {
        require_length("the image of a scanner", image.len(), self.size[0] * self.size[1])?;
        let mut field = image.to_vec();
        transform(&mut field, [1, self.size[0], self.size[1]], self.plan.forward());
        self.masked(&mut field);
        Ok(field)
    }

    /// The adjoint: the image of the samples, with zeros for the rest.
    ///
    /// # Errors
    /// If there is another number of samples.
    pub fn adjoint(&self, samples: &[Complex<f64>]) -> Result<Vec<Complex<f64>>, PhysicsError> {
        require_length("the samples of a scanner", samples.len(), self.size[0] * self.size[1])?;
        let mut field = samples.to_vec();
        self.masked(&mut field);
        transform(&mut field, [1, self.size[0], self.size[1]], self.plan.inverse());
        Ok(field)
    }

    /// Leaves what is not read, and makes the transform one that keeps lengths: either way it is done once.
    fn masked(&self, field: &mut [Complex<f64>]) {
        let scale = 1.0 / ((self.size[0] * self.size[1]) as f64).sqrt();
        for (row, &read) in field.chunks_exact_mut(self.size[1]).zip(&self.read) {
            row.iter_mut().for_each(|v| *v = if read { *v * scale } else { Complex::new(0.0, 0.0) });
        }
    }
}

/// The rows to read: all of the fraction `centre` around row 0, and random others, so that in total one in
/// `acceleration` is read.
pub fn random_rows(rows: usize, acceleration: f64, centre: f64, key: Key) -> Vec<bool> {
    let wanted = ((rows as f64 / acceleration.max(1.0)).round() as usize).clamp(1, rows);
    // By how far a row is from row 0, in the order of fft2.
    let far = |i: usize| i.min(rows - i);
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|&i| (far(i), i));
    let kept = ((rows as f64 * centre).round() as usize).min(wanted);
    let (always, others) = order.split_at_mut(kept);
    others.sort_by(|&a, &b| key.uniform(a as u64).total_cmp(&key.uniform(b as u64)));
    let mut read = vec![false; rows];
    always.iter().chain(others.iter().take(wanted - kept)).for_each(|&i| read[i] = true);
    read
}
