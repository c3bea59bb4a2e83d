//! Convolution of images with real FFTs on several threads. The spectrum of the kernel is computed once.
//!
//! The rows are transformed in place; then the half spectrum is transposed so that columns are contiguous, and stays
//! transposed for the multiplication. Every line is the work of one task, so the result is bit-identical for any number
//! of threads.

use crate::frame::mirror;
use clearshot_physics::{Correlation, Psf};
use rayon::prelude::*;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The values of an image beyond its edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Zero.
    Zero,
    /// Mirrored at the outer edges of the pixels.
    Reflect,
    /// The opposite side.
    Periodic,
}

/// Blurs images of one size with one PSF, and applies the adjoint of that.
pub(crate) struct Convolution {
    size: [usize; 3],
    /// Sizes of the transform: those of the image and the room that the edges need.
    grid: [usize; 3],
    /// Pixels of the grid before the image.
    before: [usize; 3],
    edges: Edges,
    row: Arc<dyn RealToComplex<f32>>,
    row_back: Arc<dyn ComplexToReal<f32>>,
    /// Along Z and Y.
    lines: [Arc<dyn Fft<f32>>; 2],
    lines_back: [Arc<dyn Fft<f32>>; 2],
    /// Of the kernel over the number of pixels, turned: X, Z, Y.
    spectrum: Vec<Complex<f32>>,
    /// Memory that every convolution uses again: fresh pages cost as much as the transforms.
    room: Mutex<Room>,
}

struct Room {
    grid: Vec<f32>,
    /// The half spectrum of the rows, and the whole one turned: X, Z, Y.
    rows: Vec<Complex<f32>>,
    turned: Vec<Complex<f32>>,
}

impl Convolution {
    /// The PSF must have as many axes as the image, or two if the image is a single plane.
    pub fn new(size: [usize; 3], psf: &Psf, edges: Edges) -> Convolution {
        let kernel = sizes(psf);
        let reach = kernel.map(|k| k / 2);
        let (grid, before) = match edges {
            Edges::Periodic => (size, [0; 3]),
            Edges::Zero => ([0, 1, 2].map(|a| fast_size(size[a] + kernel[a] - 1)), [0; 3]),
            Edges::Reflect => ([0, 1, 2].map(|a| fast_size(size[a] + 2 * reach[a])), reach),
        };
        Convolution::on_grid(size, grid, before, psf, edges)
    }

    /// For division by the PSF: the image and its mirror image together are periodic without a discontinuity.
    pub fn seamless(size: [usize; 3], psf: &Psf) -> Convolution {
        let grid = size.map(|n| if n > 1 { 2 * n } else { 1 });
        Convolution::on_grid(size, grid, [0; 3], psf, Edges::Reflect)
    }

    fn on_grid(
        size: [usize; 3],
        grid: [usize; 3],
        before: [usize; 3],
        psf: &Psf,
        edges: Edges,
    ) -> Convolution {
        let kernel = sizes(psf);
        let reach = kernel.map(|k| k / 2);
        let mut real = RealFftPlanner::new();
        let mut complex = FftPlanner::new();
        let mut it = Convolution {
            size,
            grid,
            before,
            edges,
            row: real.plan_fft_forward(grid[2]),
            row_back: real.plan_fft_inverse(grid[2]),
            lines: [0, 1].map(|a| complex.plan_fft_forward(grid[a])),
            lines_back: [0, 1].map(|a| complex.plan_fft_inverse(grid[a])),
            spectrum: Vec::new(),
            room: Mutex::new(Room {
                grid: vec![0.0; grid.iter().product()],
                rows: vec![Complex::new(0.0, 0.0); grid[0] * grid[1] * (grid[2] / 2 + 1)],
                turned: vec![Complex::new(0.0, 0.0); grid[0] * grid[1] * (grid[2] / 2 + 1)],
            }),
        };
        // The origin goes to the first pixel, and a kernel larger than a periodic image wraps onto itself.
        let mut values = vec![0f64; grid.iter().product()];
        for (i, v) in psf.values().iter().enumerate() {
            let at = [i / (kernel[1] * kernel[2]), i / kernel[2] % kernel[1], i % kernel[2]];
            let p =
                [0, 1, 2].map(|a| (at[a] as isize - reach[a] as isize).rem_euclid(grid[a] as isize) as usize);
            values[(p[0] * grid[1] + p[1]) * grid[2] + p[2]] += v;
        }
        let scale = 1.0 / values.len() as f64;
        let mut room = it.room();
        room.grid.iter_mut().zip(&values).for_each(|(g, v)| *g = (v * scale) as f32);
        it.forward(&mut room);
        let spectrum = room.turned.clone();
        drop(room);
        it.spectrum = spectrum;
        it
    }

    /// The image convolved with the PSF.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut room = self.room();
        self.spread(x, &mut room.grid);
        self.forward(&mut room);
        room.turned.par_iter_mut().zip(&self.spectrum).for_each(|(f, k)| *f *= k);
        self.backward(&mut room);
        self.crop(&room.grid)
    }

    /// The adjoint of [`Convolution::apply`].
    pub fn adjoint(&self, y: &[f32]) -> Vec<f32> {
        let mut room = self.room();
        self.place(y, &mut room.grid);
        self.forward(&mut room);
        room.turned.par_iter_mut().zip(&self.spectrum).for_each(|(f, k)| *f *= k.conj());
        self.backward(&mut room);
        self.fold(&room.grid)
    }

    /// Wiener deconvolution with the spectrum `conj(H) / (|H|^2 + balance P)`, where P is the noise spectrum.
    pub fn wiener(&self, y: &[f32], balance: f32, correlation: &Correlation) -> Vec<f32> {
        let n = self.grid.iter().product::<usize>() as f32;
        let mut room = self.room();
        self.spread(y, &mut room.grid);
        self.forward(&mut room);
        let [nz, ny, nx] = self.grid;
        let power = (!correlation.is_white()).then(|| correlation.spectrum([ny, nx]));
        let lines = room.turned.par_chunks_mut(ny).zip(self.spectrum.par_chunks(ny)).enumerate();
        lines.for_each(|(line, (values, kernel))| {
            for (y, (f, k)) in values.iter_mut().zip(kernel).enumerate() {
                let h = *k * n;
                let noise = power.as_ref().map_or(1.0, |p| p[y * nx + line / nz] as f32);
                *f *= h.conj() / ((h.norm_sqr() + balance * noise) * n);
            }
        });
        self.backward(&mut room);
        self.crop(&room.grid)
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        // Whatever a panic left there is overwritten.
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls with the first pixel of each row in the image and in the grid.
    fn rows(&self, mut f: impl FnMut(usize, usize)) {
        for z in 0..self.size[0] {
            for y in 0..self.size[1] {
                let to = ((z + self.before[0]) * self.grid[1] + y + self.before[1]) * self.grid[2];
                f((z * self.size[1] + y) * self.size[2], to + self.before[2]);
            }
        }
    }

    /// The image on the grid, and nothing around it.
    fn place(&self, x: &[f32], grid: &mut [f32]) {
        grid.fill(0.0);
        self.rows(|from, to| grid[to..to + self.size[2]].copy_from_slice(&x[from..from + self.size[2]]));
    }

    /// The image on the grid, with what its edges say around it.
    fn spread(&self, x: &[f32], grid: &mut [f32]) {
        if self.edges != Edges::Reflect {
            return self.place(x, grid);
        }
        let places = self.places();
        grid.par_chunks_mut(self.grid[2]).enumerate().for_each(|(row, out)| {
            let (z, y) = (places[0][row / self.grid[1]], places[1][row % self.grid[1]]);
            let from = &x[(z * self.size[1] + y) * self.size[2]..][..self.size[2]];
            out.iter_mut().zip(&places[2]).for_each(|(o, &p)| *o = from[p]);
        });
    }

    /// For each position of the grid, which pixel it shows. The room beyond what the PSF reaches is mirrored too.
    fn places(&self) -> [Vec<usize>; 3] {
        [0, 1, 2].map(|a| {
            (0..self.grid[a]).map(|p| mirror(p as isize - self.before[a] as isize, self.size[a])).collect()
        })
    }

    fn crop(&self, grid: &[f32]) -> Vec<f32> {
        let mut out = vec![0f32; self.size.iter().product()];
        self.rows(|from, to| out[from..from + self.size[2]].copy_from_slice(&grid[to..to + self.size[2]]));
        out
    }

    /// The adjoint of [`Convolution::spread`].
    fn fold(&self, grid: &[f32]) -> Vec<f32> {
        if self.edges != Edges::Reflect {
            return self.crop(grid);
        }
        let places = self.places();
        // Which positions of the grid show each pixel, along Z and Y.
        let showing = |axis: usize| {
            let mut lists = vec![Vec::new(); self.size[axis]];
            places[axis].iter().enumerate().for_each(|(p, &i)| lists[i].push(p));
            lists
        };
        let (planes, rows) = (showing(0), showing(1));
        let mut out = vec![0f32; self.size.iter().product()];
        out.par_chunks_mut(self.size[2]).enumerate().for_each(|(row, to)| {
            for &z in &planes[row / self.size[1]] {
                for &y in &rows[row % self.size[1]] {
                    let values = &grid[(z * self.grid[1] + y) * self.grid[2]..][..self.grid[2]];
                    values.iter().zip(&places[2]).for_each(|(v, &p)| to[p] += v);
                }
            }
        });
        out
    }

    /// From the grid, which is used up, to the turned half spectrum.
    fn forward(&self, room: &mut Room) {
        let [nz, ny, nx] = self.grid;
        let half = nx / 2 + 1;
        room.rows.par_chunks_mut(half).zip(room.grid.par_chunks_mut(nx)).for_each_init(
            || self.row.make_scratch_vec(),
            |scratch, (out, row)| {
                self.row.process_with_scratch(row, out, scratch).expect("lengths are those of the plan");
            },
        );
        turn(&room.rows, nz * ny, half, &mut room.turned);
        self.planes(&mut room.turned, &self.lines);
    }

    /// From the turned half spectrum to the grid.
    fn backward(&self, room: &mut Room) {
        let [nz, ny, nx] = self.grid;
        let half = nx / 2 + 1;
        self.planes(&mut room.turned, &self.lines_back);
        turn(&room.turned, half, nz * ny, &mut room.rows);
        room.grid.par_chunks_mut(nx).zip(room.rows.par_chunks_mut(half)).for_each_init(
            || self.row_back.make_scratch_vec(),
            |scratch, (out, row)| {
                // Rounding leaves traces where a real signal's spectrum is real.
                row[0].im = 0.0;
                if nx.is_multiple_of(2) {
                    row[half - 1].im = 0.0;
                }
                self.row_back.process_with_scratch(row, out, scratch).expect("lengths are those of the plan");
            },
        );
    }

    /// Transforms along Z and Y of every plane.
    fn planes(&self, turned: &mut [Complex<f32>], lines: &[Arc<dyn Fft<f32>>; 2]) {
        let [nz, ny, _] = self.grid;
        let zero = Complex::new(0f32, 0.0);
        let scratch = lines[0].get_inplace_scratch_len().max(lines[1].get_inplace_scratch_len());
        turned.par_chunks_mut(nz * ny).for_each_init(
            || (vec![zero; scratch], vec![zero; if nz > 1 { nz * ny } else { 0 }]),
            |(scratch, columns), plane| {
                if ny > 1 {
                    lines[1].process_with_scratch(plane, scratch);
                }
                if nz > 1 {
                    for (i, v) in plane.iter().enumerate() {
                        columns[i % ny * nz + i / ny] = *v;
                    }
                    lines[0].process_with_scratch(columns, scratch);
                    for (i, v) in plane.iter_mut().enumerate() {
                        *v = columns[i % ny * nz + i / ny];
                    }
                }
            },
        );
    }
}

fn sizes(psf: &Psf) -> [usize; 3] {
    match *psf.shape() {
        [y, x] => [1, y, x],
        [z, y, x] => [z, y, x],
        _ => unreachable!("a PSF has two or three axes"),
    }
}

/// Rows to columns, in tiles that stay in the cache.
fn turn(x: &[Complex<f32>], rows: usize, columns: usize, out: &mut [Complex<f32>]) {
    const TILE: usize = 16;
    out.par_chunks_mut(TILE * rows).enumerate().for_each(|(block, out)| {
        let first = block * TILE;
        let width = out.len() / rows;
        for r in (0..rows).step_by(TILE) {
            for c in 0..width {
                for i in r..(r + TILE).min(rows) {
                    out[c * rows + i] = x[i * columns + first + c];
                }
            }
        }
    });
}

/// The smallest size of at least `n` with no prime factor above 5.
fn fast_size(n: usize) -> usize {
    let smooth = |mut m: usize| {
        for p in [2, 3, 5] {
            while m.is_multiple_of(p) {
                m /= p;
            }
        }
        m == 1
    };
    (n.max(1)..).find(|&m| smooth(m)).unwrap_or(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_physics::{Boundary, Operator};
    use clearshot_tensor::noise::Key;
    use proptest::prelude::*;

    fn noise(n: usize, stream: u32) -> Vec<f32> {
        let mut x = vec![0f32; n];
        Key { seed: 8, step: 0, stream }.fill_uniform(0, &mut x);
        x
    }

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    }

    const EDGES: [(Edges, Boundary); 3] = [
        (Edges::Zero, Boundary::Zero),
        (Edges::Reflect, Boundary::Reflect),
        (Edges::Periodic, Boundary::Periodic),
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// The physics' operator is another implementation of the same meaning.
        #[test]
        fn equals_the_physics(z in 3usize..7, y in 6usize..20, x in 6usize..20, k in 1usize..6, l in 1usize..6, edges in 0usize..3, volume: bool) {
            let (edges, boundary) = EDGES[edges];
            let shape = if volume { vec![z, y, x] } else { vec![y, x] };
            let size = if volume { [z, y, x] } else { [1, y, x] };
            let psf_shape = if volume { vec![k.min(3), k, l] } else { vec![k, l] };
            let n: usize = psf_shape.iter().product();
            let psf = Psf::new(&psf_shape[..], noise(n, 1).into_iter().map(f64::from).collect()).unwrap();
            let image = noise(shape.iter().product(), 2);
            let operator = Operator::blur(&shape[..], &psf, boundary).unwrap();
            let ours = Convolution::new(size, &psf, edges);
            let wide: Vec<f64> = image.iter().map(|&v| v.into()).collect();
            for (got, truth) in [(ours.apply(&image), operator.apply(&wide)), (ours.adjoint(&image), operator.adjoint(&wide))] {
                for (a, b) in got.iter().zip(truth.unwrap()) {
                    prop_assert!((f64::from(*a) - b).abs() < 2e-6, "{a} {b}");
                }
            }
            let other = noise(image.len(), 3);
            let (left, right) = (dot(&ours.apply(&image), &other), dot(&image, &ours.adjoint(&other)));
            prop_assert!((left - right).abs() < 1e-5 * left.abs());
        }
    }
}
