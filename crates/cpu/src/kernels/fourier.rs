//! Cyclic convolution by FFTs over the spatial axes.
//!
//! The spectra of the distinct kernel planes are made first, once where the kernel never changes. Because a kernel is
//! real, two image planes that share it go through one complex transform as its real and imaginary part and come out
//! apart. They are always channels of one sample: what one rounds the other sees, and a sample must not depend on those
//! beside it.
//!
//! Along X the transforms lie in rows; along the other axes some columns at a time are gathered into
//! rows. The last forward transform, the product with the kernel's spectrum and the first transform
//! back are one pass over memory.

#[cfg(test)]
mod tests;

use super::Prepared;
use super::span;
use crate::Cpu;
use crate::pool::Shares;
use clearshot_graph::Type;
use clearshot_graph::ops;
use clearshot_graph::ops::conv::spatial;
use clearshot_graph::ops::fourier::full_kernel;
use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use std::sync::Arc;

/// Columns that are transformed together: a cache line of complex values.
const COLUMNS: usize = 8;

/// Runs `CyclicConv`: x, kernel -> y. The output may be in place of x.
pub struct CyclicConv {
    /// Z, Y, X.
    size: [usize; 3],
    adjoint: bool,
    images: Fields,
    kernels: Fields,
    /// The kernel of each of the images' fields.
    kernel_of: Vec<usize>,
    plans: [Plan; 3],
    /// The kernel never changes: its spectra are packed.
    constant: bool,
}

/// The transforms of an axis.
struct Plan {
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
}

impl Plan {
    fn scratch(&self) -> usize {
        self.forward.get_inplace_scratch_len().max(self.inverse.get_inplace_scratch_len())
    }
}

/// Complex planes: where the real and perhaps the imaginary part of each begins in a tensor whose
/// neighbouring pixels lie `step` apart.
struct Fields {
    planes: Vec<(usize, Option<usize>)>,
    step: usize,
}

/// What the tasks of a run share: spectra of images and kernels, and scratch for each thread.
#[derive(Clone, Copy)]
struct Space {
    images: Shares<Complex32>,
    kernels: Shares<Complex32>,
    scratch: Shares<Complex32>,
}

impl CyclicConv {
    pub fn new(a: ops::CyclicConv, x: &[Type], constant: bool) -> CyclicConv {
        let shape = x[0].shape;
        let kernel = full_kernel(shape, x[1].shape).expect("checked when the node was built");
        let size = spatial("x", shape).expect("checked when the node was built");
        let pixels: usize = size.iter().product();
        let (kn, kc) = (kernel[0], kernel.channels());
        let mut images = Fields { planes: Vec::new(), step: shape.channels() };
        let mut kernels = Fields { planes: Vec::new(), step: kc };
        let mut kernel_of = Vec::new();
        for k in 0..kn * kc {
            kernels.planes.push((k / kc * pixels * kc + k % kc, None));
            let samples = if kn == 1 { 0..shape[0] } else { k / kc..k / kc + 1 };
            let channels = if kc == 1 { 0..shape.channels() } else { k % kc..k % kc + 1 };
            for n in samples {
                let sharing: Vec<usize> =
                    channels.clone().map(|c| n * pixels * shape.channels() + c).collect();
                for pair in sharing.chunks(2) {
                    images.planes.push((pair[0], pair.get(1).copied()));
                    kernel_of.push(k);
                }
            }
        }
        let mut planner = FftPlanner::new();
        let plans = size.map(|n| Plan {
            forward: planner.plan_fft_forward(n.max(1)),
            inverse: planner.plan_fft_inverse(n.max(1)),
        });
        CyclicConv { size, adjoint: a.adjoint, images, kernels, kernel_of, plans, constant }
    }

    fn pixels(&self) -> usize {
        self.size.iter().product()
    }

    /// The axis whose transforms there and back are one pass.
    fn middle(&self) -> usize {
        if self.size[0] > 1 { 0 } else { 1 }
    }

    /// Scratch of one thread, in complex values: columns and what the plans ask for.
    fn scratch_len(&self) -> usize {
        let longest = self.size[0].max(self.size[1]);
        COLUMNS * longest + self.plans.iter().map(Plan::scratch).max().unwrap_or(0)
    }

    /// Reads planes from a tensor and transforms them along X.
    fn load(
        &self,
        cpu: &Cpu,
        from: Shares<f32>,
        fields: &Fields,
        to: Shares<Complex32>,
        scratch: Shares<Complex32>,
    ) {
        let [sz, sy, sx] = self.size;
        let plan = &self.plans[2];
        let rows = fields.planes.len() * sz * sy;
        self.tasks(cpu, rows, sx, scratch, |row, scratch| {
            let (real, imaginary) = fields.planes[row / (sz * sy)];
            let first = row % (sz * sy) * sx * fields.step;
            // SAFETY: the planes lie in the tensor; the row is this call's.
            let line = unsafe { to.slice(row * sx, sx) };
            for (i, v) in line.iter_mut().enumerate() {
                // SAFETY: as above.
                let at = |plane: usize| unsafe { *from.at(plane + first + i * fields.step) };
                *v = Complex32::new(at(real), imaginary.map_or(0.0, at));
            }
            plan.forward.process_with_scratch(line, scratch);
        });
    }

    /// Transforms planes back along X and writes them to a tensor.
    fn store(&self, cpu: &Cpu, to: Shares<f32>, from: Shares<Complex32>, scratch: Shares<Complex32>) {
        let [sz, sy, sx] = self.size;
        let plan = &self.plans[2];
        let step = self.images.step;
        let rows = self.images.planes.len() * sz * sy;
        self.tasks(cpu, rows, sx, scratch, |row, scratch| {
            let (real, imaginary) = self.images.planes[row / (sz * sy)];
            let first = row % (sz * sy) * sx * step;
            // SAFETY: the row is this call's.
            let line = unsafe { from.slice(row * sx, sx) };
            plan.inverse.process_with_scratch(line, scratch);
            for (i, v) in line.iter().enumerate() {
                // SAFETY: these pixels of the planes are this call's.
                unsafe {
                    *to.at(real + first + i * step) = v.re;
                    if let Some(plane) = imaginary {
                        *to.at(plane + first + i * step) = v.im;
                    }
                }
            }
        });
    }

    /// Transforms `fields` planes along Z or Y, with `change(field, first pixel, columns, scratch)`
    /// applied to each group of columns.
    fn columns(
        &self,
        cpu: &Cpu,
        axis: usize,
        fields: usize,
        planes: Shares<Complex32>,
        scratch: Shares<Complex32>,
        change: impl Fn(usize, usize, &mut [Complex32], &mut [Complex32]) + Sync,
    ) {
        let (n, sx) = (self.size[axis], self.size[2]);
        // Along Z a column steps over planes and there are Y X of them; along Y over rows.
        let (step, run, repeats) =
            if axis == 0 { (self.size[1] * sx, self.size[1] * sx, 1) } else { (sx, sx, self.size[0]) };
        let groups = run.div_ceil(COLUMNS);
        self.tasks(cpu, fields * repeats * groups, n * COLUMNS, scratch, |unit, scratch| {
            let (field, repeat, group) =
                (unit / groups / repeats, unit / groups % repeats, unit % groups * COLUMNS);
            let wide = COLUMNS.min(run - group);
            let first = repeat * self.size[1] * sx + group;
            let at = field * self.pixels() + first;
            let (columns, scratch) = scratch.split_at_mut(n * COLUMNS);
            let columns = &mut columns[..n * wide];
            for i in 0..n {
                for c in 0..wide {
                    // SAFETY: the columns lie in the field's plane.
                    columns[c * n + i] = unsafe { *planes.at(at + i * step + c) };
                }
            }
            change(field, first, columns, scratch);
            for i in 0..n {
                for c in 0..wide {
                    // SAFETY: as above; these columns are this call's.
                    unsafe { *planes.at(at + i * step + c) = columns[c * n + i] };
                }
            }
        });
    }

    /// Calls `body(unit, scratch)` for units of about `weight` complex values.
    fn tasks(
        &self,
        cpu: &Cpu,
        units: usize,
        weight: usize,
        scratch: Shares<Complex32>,
        body: impl Fn(usize, &mut [Complex32]) + Sync,
    ) {
        // A transform is several passes over its values.
        let each = (span::GRAIN / (8 * weight.max(1))).max(1);
        cpu.pool.run(units.div_ceil(each), |worker, task| {
            // SAFETY: each worker has its own part.
            let mine = unsafe { scratch.slice(worker * self.scratch_len(), self.scratch_len()) };
            for unit in task * each..((task + 1) * each).min(units) {
                body(unit, mine);
            }
        });
    }

    /// The spectra of the kernels, `kernel` being the operand.
    fn spectra(&self, cpu: &Cpu, kernel: *const f32, kernels: Shares<Complex32>, scratch: Shares<Complex32>) {
        self.load(cpu, span::shared(kernel), &self.kernels, kernels, scratch);
        for axis in [1, 0].into_iter().filter(|&a| self.size[a] > 1) {
            let plan = &self.plans[axis];
            let count = self.kernels.planes.len();
            self.columns(cpu, axis, count, kernels, scratch, |_, _, columns, scratch| {
                plan.forward.process_with_scratch(columns, scratch);
            });
        }
    }

    /// Complex values of all kernels' spectra.
    fn spectra_len(&self) -> usize {
        self.kernels.planes.len() * self.pixels()
    }

    /// Forward along the middle axis, times the kernel's spectrum, and back.
    fn multiply(&self, cpu: &Cpu, space: Space) {
        let axis = self.middle();
        let n = self.size[axis];
        let step = if axis == 0 { self.size[1] * self.size[2] } else { self.size[2] };
        let scale = 1.0 / self.pixels() as f32;
        let plan = &self.plans[axis];
        let fields = self.images.planes.len();
        self.columns(cpu, axis, fields, space.images, space.scratch, |field, first, columns, scratch| {
            plan.forward.process_with_scratch(columns, scratch);
            let kernel = self.kernel_of[field] * self.pixels() + first;
            for (c, column) in columns.chunks_mut(n).enumerate() {
                for (i, v) in column.iter_mut().enumerate() {
                    // SAFETY: the same pixel of the kernel's plane, which nobody writes now.
                    let k = unsafe { *space.kernels.at(kernel + i * step + c) } * scale;
                    *v *= if self.adjoint { k.conj() } else { k };
                }
            }
            plan.inverse.process_with_scratch(columns, scratch);
        });
    }
}

impl Prepared for CyclicConv {
    unsafe fn run(&self, cpu: &Cpu, inputs: &[*const f32], outputs: &[*mut f32], workspace: *mut f32) {
        let images = self.images.planes.len();
        if self.pixels() == 0 || images == 0 {
            return;
        }
        let base: *mut Complex32 = workspace.cast();
        // SAFETY: the workspace holds these, one behind the other; packed spectra are only read.
        let space = unsafe {
            let behind = base.add(images * self.pixels());
            match self.constant {
                true => Space {
                    images: Shares(base),
                    kernels: Shares(inputs[2].cast_mut().cast()),
                    scratch: Shares(behind),
                },
                false => Space {
                    images: Shares(base),
                    kernels: Shares(behind),
                    scratch: Shares(behind.add(self.spectra_len())),
                },
            }
        };
        let scratch = space.scratch;
        if !self.constant {
            self.spectra(cpu, inputs[1], space.kernels, scratch);
        }
        self.load(cpu, span::shared(inputs[0]), &self.images, space.images, scratch);
        let deep = self.middle() == 0;
        if deep {
            let plan = &self.plans[1];
            self.columns(cpu, 1, images, space.images, scratch, |_, _, columns, scratch| {
                plan.forward.process_with_scratch(columns, scratch);
            });
        }
        self.multiply(cpu, space);
        if deep {
            let plan = &self.plans[1];
            self.columns(cpu, 1, images, space.images, scratch, |_, _, columns, scratch| {
                plan.inverse.process_with_scratch(columns, scratch);
            });
        }
        self.store(cpu, Shares(outputs[0]), space.images, scratch);
    }

    fn packed_len(&self) -> usize {
        if self.constant { 2 * self.spectra_len() } else { 0 }
    }

    unsafe fn pack(&self, cpu: &Cpu, inputs: &[*const f32], packed: &mut [f32]) {
        assert!(packed.len() >= self.packed_len(), "spectra need {} values", self.packed_len());
        if self.packed_len() == 0 {
            return;
        }
        let mut scratch = vec![Complex32::default(); cpu.pool.threads() * self.scratch_len()];
        self.spectra(cpu, inputs[1], Shares(packed.as_mut_ptr().cast()), Shares(scratch.as_mut_ptr()));
    }

    fn workspace_len(&self, threads: usize) -> usize {
        let kernels = if self.constant { 0 } else { self.spectra_len() };
        2 * (self.images.planes.len() * self.pixels() + kernels + threads * self.scratch_len())
    }
}
