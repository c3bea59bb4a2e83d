//! How a bucket of gradients travels: as it is, in 16 bits, or as matrices of low rank (PowerSGD).
//!
//! PowerSGD (Vogels, Karimireddy and Jaggi, 2019): of a gradient as an n x m matrix M, the ranks average P = M Q, make its columns orthonormal, and average Q = M^T P; all then
//! have P Q^T in place of M. That is (n + m) r values for n m. What is lost on the way stays with each rank and is added to its next gradient (error feedback), and Q is kept: from
//! iteration to iteration it turns towards the largest singular vectors. Matrices for which that is not fewer than half of the values, and biases, travel as they are.

use crate::config::{Compression, DistributedConfig};
use crate::task::key;
use clearshot_collectives::{Collective, CollectiveError};
use clearshot_nn::Weights;
use clearshot_tensor::{Shape, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The stream of the first Q.
const START: u32 = 0x905;

type Done<T> = Result<T, CollectiveError>;

/// Rows and columns of a gradient as a matrix, results first, where sending it as one of rank `rank` halves its values at least.
fn as_matrix(shape: &Shape, rank: usize) -> Option<[usize; 2]> {
    let rows = if shape.rank() < 2 { return None } else { shape[0] };
    let columns = shape.len() / rows.max(1);
    (2 * rank * (rows + columns) < shape.len()).then_some([rows, columns])
}

/// Values that travel for gradients of these shapes by PowerSGD.
pub fn values_sent(shapes: &[Shape], rank: usize) -> usize {
    let each = |s: &Shape| as_matrix(s, rank).map_or(s.len(), |[n, m]| rank * (n + m));
    shapes.iter().map(each).sum()
}

/// One gradient of a bucket that travels as a matrix of low rank.
struct Matrix {
    at: usize,
    rows: usize,
    columns: usize,
    /// m x r, column after column.
    q: Vec<f32>,
}

/// How one bucket travels.
pub(super) struct Compressor {
    kind: Compression,
    rank: usize,
    /// Iterations that travel as they are.
    start: u64,
    matrices: Vec<Matrix>,
    /// Stretches of the bucket that travel as they are, by offset and length.
    plain: Vec<[usize; 2]>,
    /// What was lost so far, of all values of the bucket.
    error: Vec<f32>,
    bf16: Vec<bf16>,
    f16: Vec<f16>,
}

impl Compressor {
    /// Numbers and not gradients travel as they are: `distributed` is none for them.
    pub fn new(distributed: Option<&DistributedConfig>, shapes: &[Shape], seed: u64) -> Compressor {
        let kind = distributed.map_or(Compression::None, |d| d.compression);
        let (rank, start) = distributed.map_or((1, 0), |d| (d.rank.max(1), d.start));
        let (mut matrices, mut plain, mut at) = (vec![], vec![], 0);
        for (i, shape) in shapes.iter().enumerate() {
            match as_matrix(shape, rank).filter(|_| kind == Compression::Powersgd) {
                Some([rows, columns]) => {
                    let mut q = vec![0.0; columns * rank];
                    key(seed, i as u64, START).fill_normal(0, &mut q);
                    matrices.push(Matrix { at, rows, columns, q });
                }
                None => plain.push([at, shape.len()]),
            }
            at += shape.len();
        }
        let error = if matrices.is_empty() { vec![] } else { vec![0.0; at] };
        Compressor { kind, rank, start, matrices, plain, error, bf16: vec![], f16: vec![] }
    }

    /// Replaces values by their means over ranks. Gives how many values were sent for them.
    pub fn average(&mut self, values: &mut [f32], ranks: &dyn Collective, iteration: u64) -> Done<usize> {
        let share = 1.0 / ranks.size() as f32;
        match self.kind {
            Compression::Bf16 => {
                values.iter_mut().for_each(|v| *v *= share);
                self.bf16.resize(values.len(), bf16::ZERO);
                self.bf16.convert_from_f32_slice(values);
                ranks.sum_bf16(&mut self.bf16)?;
                self.bf16.convert_to_f32_slice(values);
            }
            Compression::Fp16 => {
                values.iter_mut().for_each(|v| *v *= share);
                self.f16.resize(values.len(), f16::ZERO);
                self.f16.convert_from_f32_slice(values);
                ranks.sum_f16(&mut self.f16)?;
                self.f16.convert_to_f32_slice(values);
            }
            Compression::Powersgd if iteration >= self.start && !self.matrices.is_empty() => {
                return self.low_rank(values, ranks, share);
            }
            Compression::None | Compression::Powersgd => mean(values, ranks, share)?,
        }
        Ok(values.len())
    }

    fn low_rank(&mut self, values: &mut [f32], ranks: &dyn Collective, share: f32) -> Done<usize> {
        let r = self.rank;
        // What travels as it is, and all P, in one exchange; all Q in another.
        let mut sent: Vec<f32> = vec![];
        for [at, len] in &self.plain {
            sent.extend_from_slice(&values[*at..at + len]);
        }
        let plain = sent.len();
        for m in &self.matrices {
            let own = m.at..m.at + m.rows * m.columns;
            values[own.clone()].iter_mut().zip(&self.error[own.clone()]).for_each(|(v, e)| *v += e);
            for q in m.q.chunks_exact(m.columns) {
                let rows = values[own.clone()].chunks_exact(m.columns);
                sent.extend(rows.map(|row| dot(row, q)));
            }
        }
        mean(&mut sent, ranks, share)?;
        let (means, mut ps) = sent.split_at_mut(plain);
        let mut means = &means[..];
        for [at, len] in &self.plain {
            let (own, rest) = means.split_at(*len);
            values[*at..at + len].copy_from_slice(own);
            means = rest;
        }
        let mut qs: Vec<f32> = vec![];
        let mut each: Vec<&mut [f32]> = vec![];
        for m in &self.matrices {
            let (p, rest) = std::mem::take(&mut ps).split_at_mut(m.rows * r);
            ps = rest;
            orthonormal(p, m.rows);
            for column in p.chunks_exact(m.rows) {
                let from = qs.len();
                qs.resize(from + m.columns, 0.0);
                let rows = values[m.at..m.at + m.rows * m.columns].chunks_exact(m.columns);
                for (row, weight) in rows.zip(column.iter()) {
                    qs[from..].iter_mut().zip(row).for_each(|(q, v)| *q += weight * v);
                }
            }
            each.push(p);
        }
        mean(&mut qs, ranks, share)?;
        let mut rest = &qs[..];
        for (m, p) in self.matrices.iter_mut().zip(each) {
            let (q, others) = rest.split_at(m.columns * r);
            rest = others;
            let own = m.at..m.at + m.rows * m.columns;
            let finite = q.iter().chain(&*p).all(|x| x.is_finite());
            if !finite {
                // The iteration is skipped on all ranks, for all see this; nothing of it is kept.
                values[own.clone()].fill(f32::NAN);
                self.error[own].fill(0.0);
                continue;
            }
            m.q.copy_from_slice(q);
            for (i, row) in values[own.clone()].chunks_exact_mut(m.columns).enumerate() {
                let lost = &mut self.error[m.at + i * m.columns..m.at + (i + 1) * m.columns];
                lost.copy_from_slice(row);
                row.fill(0.0);
                for (p, q) in p.chunks_exact(m.rows).zip(q.chunks_exact(m.columns)) {
                    row.iter_mut().zip(q).for_each(|(v, q)| *v += p[i] * q);
                }
                lost.iter_mut().zip(row.iter()).for_each(|(e, v)| *e -= v);
            }
        }
        Ok(sent.len() + qs.len())
    }

    /// Puts what is kept among states: Q, which is the same everywhere, and every rank's loss.
    pub fn save(&self, bucket: u32, ranks: &dyn Collective, all: &mut Weights) -> Done<()> {
        if self.matrices.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = self.error.iter().flat_map(|x| x.to_le_bytes()).collect();
        for (rank, bytes) in ranks.all_gather(&bytes)?.iter().enumerate() {
            let error = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            all.insert(error_name(bucket, rank, ranks.size()), Tensor::f32([self.error.len()], error));
        }
        let q: Vec<f32> = self.matrices.iter().flat_map(|m| m.q.iter().copied()).collect();
        all.insert(q_name(bucket), Tensor::f32([q.len()], q));
        Ok(())
    }

    /// Takes what is kept from states. Says whether it was all there.
    pub fn load(&mut self, bucket: u32, rank: usize, size: usize, states: &Weights) -> bool {
        let values = |name: String, len: usize| {
            let found = states.get(&name).and_then(|t| t.as_f32().ok()).filter(|v| v.len() == len);
            found.map(<[f32]>::to_vec)
        };
        if self.matrices.is_empty() {
            return true;
        }
        let len = self.matrices.iter().map(|m| m.q.len()).sum();
        let q = values(q_name(bucket), len);
        if let Some(q) = &q {
            let mut rest = &q[..];
            for m in &mut self.matrices {
                let (own, others) = rest.split_at(m.q.len());
                m.q.copy_from_slice(own);
                rest = others;
            }
        }
        let error = values(error_name(bucket, rank, size), self.error.len());
        let fits = q.is_some() && error.is_some();
        self.error = error.unwrap_or_else(|| vec![0.0; self.error.len()]);
        fits
    }
}

/// How the names of these states begin.
pub(crate) const PREFIX: &str = "exchange.";

fn q_name(bucket: u32) -> String {
    format!("{PREFIX}q.{bucket}")
}

fn error_name(bucket: u32, rank: usize, size: usize) -> String {
    format!("{PREFIX}error.{bucket}.{rank}of{size}")
}

fn mean(values: &mut [f32], ranks: &dyn Collective, share: f32) -> Done<()> {
    ranks.sum_f32(values)?;
    values.iter_mut().for_each(|v| *v *= share);
    Ok(())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums that the compiler keeps in one register, in an order that is always the same.
    let mut sums = [0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (x, y) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// Makes columns of `rows` values orthonormal, one after another (Gram-Schmidt).
fn orthonormal(columns: &mut [f32], rows: usize) {
    for i in 0..columns.len() / rows {
        let (before, own) = columns.split_at_mut(i * rows);
        let own = &mut own[..rows];
        for other in before.chunks_exact(rows) {
            let along: f64 = own.iter().zip(other).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            own.iter_mut().zip(other).for_each(|(x, y)| *x -= along as f32 * y);
        }
        let norm = own.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        // A column of nothing stays one: its part of the gradient is nothing.
        let scale = if norm > 1e-30 { (1.0 / norm) as f32 } else { 0.0 };
        own.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clearshot_collectives::threads::Threads;

    /// What every rank has after each of some iterations over its own values.
    fn averaged(
        distributed: &DistributedConfig,
        shapes: &[Shape],
        values: impl Fn(usize, u64) -> Vec<f32> + Sync,
        ranks: usize,
        iterations: u64,
    ) -> Vec<Vec<Vec<f32>>> {
        std::thread::scope(|s| {
            let one = |rank: Threads| {
                let values = &values;
                s.spawn(move || {
                    let mut compressor = Compressor::new(Some(distributed), shapes, 5);
                    let mut step = |i: u64| {
                        let mut own = values(rank.rank(), i);
                        compressor.average(&mut own, &rank, i).unwrap();
                        own
                    };
                    (0..iterations).map(&mut step).collect::<Vec<_>>()
                })
            };
            let all: Vec<_> = Threads::group(ranks).into_iter().map(one).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    fn noise(rank: usize, i: u64, len: usize) -> Vec<f32> {
        let mut own = vec![0.0; len];
        key(rank as u64, i, 1).fill_normal(0, &mut own);
        own
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        let square = |x: f64| x * x;
        let off: f64 = a.iter().zip(b).map(|(x, y)| square(f64::from(x - y))).sum();
        (off / b.iter().map(|y| square(f64::from(*y))).sum::<f64>()).sqrt()
    }

    #[test]
    fn matrices_of_low_rank_travel_exactly_and_start_is_exact() {
        // Gradients of rank two, the same space on all ranks: P Q^T is all of them.
        let (n, m) = (24, 40);
        let shapes = [Shape::new(&[n, m]), Shape::new(&[7])];
        let of = |rank: usize, i: u64| {
            let [a, b] = [noise(rank, i, 2 * n), noise(9, 0, 2 * m)];
            let entry = |k: usize| (0..2).map(|c| a[c * n + k / m] * b[c * m + k % m]).sum::<f32>();
            (0..n * m).map(entry).chain(noise(rank, 77 + i, 7)).collect::<Vec<f32>>()
        };
        let settings = DistributedConfig {
            compression: Compression::Powersgd,
            rank: 2,
            start: 2,
            ..DistributedConfig::default()
        };
        let all = averaged(&settings, &shapes, of, 3, 5);
        for i in 0..5 {
            let parts: Vec<Vec<f32>> = (0..3).map(|r| of(r, i as u64)).collect();
            let mean: Vec<f32> =
                (0..parts[0].len()).map(|k| parts.iter().map(|p| p[k]).sum::<f32>() / 3.0).collect();
            assert!(all.iter().all(|rank| rank[i] == all[0][i]), "the same on all ranks");
            let off = distance(&all[0][i], &mean);
            assert!(off < if i < 2 { 1e-6 } else { 1e-4 }, "{i}: {off}");
        }
    }

    /// What is lost comes later: the sum of what was applied comes close to the sum of what was meant.
    #[test]
    fn errors_are_fed_back() {
        let (n, m, ranks) = (16, 32, 2);
        let shapes = [Shape::new(&[n, m])];
        let of = |rank: usize, _: u64| noise(rank, 3, n * m);
        let settings = DistributedConfig {
            compression: Compression::Powersgd,
            rank: 1,
            start: 0,
            ..DistributedConfig::default()
        };
        let off = |iterations: u64| {
            let applied = averaged(&settings, &shapes, of, ranks, iterations);
            let mut sum = vec![0f32; n * m];
            applied[0]
                .iter()
                .for_each(|step| sum.iter_mut().zip(step).for_each(|(s, v)| *s += v / iterations as f32));
            let mean: Vec<f32> = of(0, 0).iter().zip(of(1, 0)).map(|(a, b)| (a + b) / 2.0).collect();
            distance(&sum, &mean)
        };
        // One matrix of rank one of sixteen is far off; what is applied in the long run is not.
        assert!(off(1) > 0.8 && off(200) < 0.2, "{} {}", off(1), off(200));
    }

    /// refs/make_powersgd.py: PyTorch's powerSGD_hook in two processes, from the same first Q.
    #[test]
    fn ranks_have_what_pytorch_has() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../refs/train/powersgd.json");
        let Ok(text) = std::fs::read(path) else { return eprintln!("skipped: {path} is not there") };
        let of: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let list = |v: &serde_json::Value| -> Vec<f32> {
            v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
        };
        let size = |key: &str| of[key].as_u64().unwrap() as usize;
        let shapes = [Shape::new(&[size("rows"), size("columns")]), Shape::new(&[size("bias")])];
        let settings = DistributedConfig {
            compression: Compression::Powersgd,
            rank: size("rank"),
            start: of["start"].as_u64().unwrap(),
            ..DistributedConfig::default()
        };
        let steps = of["averaged"].as_array().unwrap().len();
        let (of, settings, shapes) = (&of, &settings, &shapes);
        std::thread::scope(|s| {
            for rank in Threads::group(2) {
                s.spawn(move || {
                    let mut compressor = Compressor::new(Some(settings), shapes, 5);
                    compressor.matrices[0].q = list(&of["q"]);
                    for i in 0..steps {
                        let mut own = list(&of["gradients"][rank.rank()][i]);
                        compressor.average(&mut own, &rank, i as u64).unwrap();
                        let off = distance(&own, &list(&of["averaged"][i]));
                        assert!(off < 1e-5, "iteration {i}: {off}");
                    }
                });
            }
        });
    }

    #[test]
    fn sixteen_bits_are_what_rounding_leaves() {
        for (compression, least) in [(Compression::Bf16, 4e-3), (Compression::Fp16, 5e-4)] {
            let settings = DistributedConfig { compression, ..DistributedConfig::default() };
            let of = |rank: usize, i: u64| noise(rank, i, 500);
            let all = averaged(&settings, &[Shape::new(&[500])], of, 4, 1);
            let mean: Vec<f32> = (0..500).map(|k| (0..4).map(|r| of(r, 0)[k]).sum::<f32>() / 4.0).collect();
            let off = distance(&all[0][0], &mean);
            assert!(off > 1e-5 && off < least, "{compression:?}: {off}");
        }
    }

    #[test]
    fn what_is_not_finite_is_told_to_all_and_forgotten() {
        let shapes = [Shape::new(&[16, 32])];
        let of = |rank: usize, i: u64| match (rank, i) {
            (1, 1) => vec![f32::NAN; 512],
            _ => noise(rank, i, 512),
        };
        let settings = DistributedConfig {
            compression: Compression::Powersgd,
            rank: 2,
            start: 0,
            ..DistributedConfig::default()
        };
        for rank in averaged(&settings, &shapes, of, 2, 3) {
            assert!(rank[0].iter().all(|v| v.is_finite()));
            assert!(rank[1].iter().all(|v| v.is_nan()));
            assert!(rank[2].iter().all(|v| v.is_finite()));
        }
    }
}
