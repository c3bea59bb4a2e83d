//! Winograd's transforms along one axis: F(2, 3) and F(4, 3).
//!
//! A tile of `OUT` outputs of a three-tap filter needs `OUT + 2` multiplications instead of `3 OUT`:
//! `y = A^T ((G g) * (B^T d))`. In the plane each transform is applied along both axes. The points are
//! 0, 1, -1 and infinity, for F(4, 3) also 2 and -2 (Lavin and Gray, arXiv:1509.09308); larger tiles lose
//! more accuracy and time in the transforms than they win.

use crate::simd::Simd;

/// The transforms of one tile size. Arrays have the larger scheme's length; a scheme uses the
/// first `OUT` or `IN` of them.
pub(in super::super) trait Scheme: Copy + Send + Sync + 'static {
    const OUT: usize;
    const IN: usize = Self::OUT + 2;
    /// Multiplications for a tile in the plane.
    const POINTS: usize = Self::IN * Self::IN;

    /// `B^T d`: pixels to points.
    fn input<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6];
    /// `G g`: taps to points.
    fn kernel<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6];
    /// `A^T m`: points to outputs.
    fn output<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4];
    /// `A y`: the gradient of outputs to points.
    fn output_grad<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 6];
    /// `G^T u`: the gradient of points to taps.
    fn kernel_grad<S: Simd>(s: S, u: [S::V; 6]) -> [S::V; 3];
}

/// Two outputs from four points.
#[derive(Clone, Copy)]
pub(in super::super) struct F2;

/// Four outputs from six points.
#[derive(Clone, Copy)]
pub(in super::super) struct F4;

impl Scheme for F2 {
    const OUT: usize = 2;

    #[inline(always)]
    fn input<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6] {
        let zero = s.splat(0.0);
        [s.sub(d[0], d[2]), s.add(d[1], d[2]), s.sub(d[2], d[1]), s.sub(d[1], d[3]), zero, zero]
    }
    #[inline(always)]
    fn kernel<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
        let (zero, half) = (s.splat(0.0), s.splat(0.5));
        let (even, odd) = (s.mul(half, s.add(g[0], g[2])), s.mul(half, g[1]));
        [g[0], s.add(even, odd), s.sub(even, odd), g[2], zero, zero]
    }
    #[inline(always)]
    fn output<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4] {
        let zero = s.splat(0.0);
        [s.add(m[0], s.add(m[1], m[2])), s.sub(s.sub(m[1], m[2]), m[3]), zero, zero]
    }
    #[inline(always)]
    fn output_grad<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 6] {
        let zero = s.splat(0.0);
        [y[0], s.add(y[0], y[1]), s.sub(y[0], y[1]), s.sub(zero, y[1]), zero, zero]
    }
    #[inline(always)]
    fn kernel_grad<S: Simd>(s: S, u: [S::V; 6]) -> [S::V; 3] {
        let half = s.splat(0.5);
        let (sum, difference) = (s.mul(half, s.add(u[1], u[2])), s.mul(half, s.sub(u[1], u[2])));
        [s.add(u[0], sum), difference, s.add(u[3], sum)]
    }
}

impl Scheme for F4 {
    const OUT: usize = 4;

    #[inline(always)]
    fn input<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6] {
        let (two, four, five) = (s.splat(2.0), s.splat(4.0), s.splat(5.0));
        let even = s.fnma(four, d[2], d[4]);
        let odd = s.fnma(four, d[1], d[3]);
        let near = s.sub(d[4], d[2]);
        let slope = s.mul(two, s.sub(d[3], d[1]));
        [
            s.fma(four, d[0], s.fnma(five, d[2], d[4])),
            s.add(even, odd),
            s.sub(even, odd),
            s.add(near, slope),
            s.sub(near, slope),
            s.fma(four, d[1], s.fnma(five, d[3], d[5])),
        ]
    }
    #[inline(always)]
    fn kernel<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
        let sixth = s.splat(-1.0 / 6.0);
        let (even, odd) = (s.mul(sixth, s.add(g[0], g[2])), s.mul(sixth, g[1]));
        let wide = s.fma(s.splat(1.0 / 24.0), g[0], s.mul(s.splat(1.0 / 6.0), g[2]));
        let tilt = s.mul(s.splat(1.0 / 12.0), g[1]);
        [
            s.mul(s.splat(0.25), g[0]),
            s.add(even, odd),
            s.sub(even, odd),
            s.add(wide, tilt),
            s.sub(wide, tilt),
            g[2],
        ]
    }
    #[inline(always)]
    fn output<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4] {
        let (p, q) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
        let (r, t) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
        [
            s.add(m[0], s.add(p, r)),
            s.fma(s.splat(2.0), t, q),
            s.fma(s.splat(4.0), r, p),
            s.add(s.fma(s.splat(8.0), t, q), m[5]),
        ]
    }
    #[inline(always)]
    fn output_grad<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 6] {
        let (even, odd) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
        let wide = s.fma(s.splat(4.0), y[2], y[0]);
        let tilt = s.fma(s.splat(8.0), y[3], s.mul(s.splat(2.0), y[1]));
        [y[0], s.add(even, odd), s.sub(even, odd), s.add(wide, tilt), s.sub(wide, tilt), y[3]]
    }
    #[inline(always)]
    fn kernel_grad<S: Simd>(s: S, u: [S::V; 6]) -> [S::V; 3] {
        let sixth = s.splat(1.0 / 6.0);
        let (near, far) = (s.add(u[1], u[2]), s.add(u[3], u[4]));
        let slope = s.mul(sixth, s.sub(u[2], u[1]));
        [
            s.fma(s.splat(0.25), u[0], s.fma(s.splat(1.0 / 24.0), far, s.mul(s.splat(-1.0 / 6.0), near))),
            s.fma(s.splat(1.0 / 12.0), s.sub(u[3], u[4]), slope),
            s.add(u[5], s.mul(sixth, s.sub(far, near))),
        ]
    }
}

/// A transform along both axes: `f` on each of `from` columns, then on each of the `to` rows that
/// these give; `load` makes the value of a row and column, `store` takes one. `A` and `B` are the lengths of
/// the arrays that `f` maps. A macro, because a closure is not always inlined, and one that is not was
/// compiled without the vector instructions.
macro_rules! both_axes {
    ($s:ident, $a:literal to $b:literal, $from:expr, $to:expr, $f:path,
     load |$ly:ident, $lx:ident| $load:expr, store |$sy:ident, $sx:ident, $v:ident| $store:expr) => {{
        let zero = $s.splat(0.0);
        let mut half = [[zero; $a]; $b];
        for $lx in 0..$from {
            let mut line = [zero; $a];
            for $ly in 0..$from {
                line[$ly] = $load;
            }
            let line = $f($s, line);
            for row in 0..$to {
                half[row][$lx] = line[row];
            }
        }
        for $sy in 0..$to {
            let line = $f($s, half[$sy]);
            for $sx in 0..$to {
                let $v = line[$sx];
                $store;
            }
        }
    }};
}

pub(super) use both_axes;
