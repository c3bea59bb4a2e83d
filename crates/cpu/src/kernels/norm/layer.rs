//! The inner loops of layer norm, where an image is one pixel and one group: its mean and rstd are
//! the same for all channels, so that the affine map needs no coefficients of its own.

use super::Affine;
use super::columns::{Step, load, store};
use crate::act::{self, Activation};
use crate::simd::Simd;

/// How x becomes u: the statistics, and what is multiplied and added for each channel. Null
/// pointers stand for ones and zeros.
#[derive(Clone, Copy)]
pub struct Terms<S: Simd> {
    mean: S::V,
    rstd: S::V,
    gamma: *const f32,
    beta: *const f32,
    scale: *const f32,
    shift: *const f32,
}

/// A channel vector's normalised x, and the terms of u = hat gamma' + beta'.
struct At<V> {
    hat: V,
    gamma: V,
    beta: V,
    /// 1 + scale
    factor: V,
}

impl<S: Simd> Terms<S> {
    /// # Safety
    /// `stats` has two values, `row + first` lies in the modulation and `first` in gamma and beta.
    #[inline(always)]
    pub unsafe fn new(s: S, affine: &Affine, stats: *const f32, row: usize, first: usize) -> Self {
        let null = std::ptr::null();
        let (mut gamma, mut beta, mut scale, mut shift) = (null, null, null, null);
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(p) = affine.gamma {
                gamma = p.as_ptr().add(first);
            }
            if let Some(p) = affine.beta {
                beta = p.as_ptr().add(first);
            }
            if let Some((p, q)) = affine.film {
                (scale, shift) = (p.as_ptr().add(row + first), q.as_ptr().add(row + first));
            }
            let (mean, rstd) = (s.splat(*stats), s.splat(*stats.add(1)));
            Terms { mean, rstd, gamma, beta, scale, shift }
        }
    }

    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, x: S::V, c: usize, n: usize) -> At<S::V> {
        let one = s.splat(1.0);
        let mut at =
            At { hat: s.mul(s.sub(x, self.mean), self.rstd), gamma: one, beta: s.splat(0.0), factor: one };
        // SAFETY: the caller's channels.
        unsafe {
            if !self.gamma.is_null() {
                at.gamma = load::<S, FULL>(s, self.gamma.add(c), n);
            }
            if !self.beta.is_null() {
                at.beta = load::<S, FULL>(s, self.beta.add(c), n);
            }
            if !self.scale.is_null() {
                at.factor = s.add(one, load::<S, FULL>(s, self.scale.add(c), n));
            }
        }
        at
    }

    /// u, given what `at` found.
    #[inline(always)]
    unsafe fn value<const FULL: bool>(&self, s: S, at: &At<S::V>, c: usize, n: usize) -> S::V {
        let u = s.fma(at.hat, at.gamma, at.beta);
        if self.shift.is_null() {
            return u;
        }
        // SAFETY: the caller's channels.
        s.fma(u, at.factor, unsafe { load::<S, FULL>(s, self.shift.add(c), n) })
    }
}

/// y = act(u).
pub struct Apply<S: Simd, A> {
    pub act: A,
    pub terms: Terms<S>,
    pub x: *const f32,
    pub y: *mut f32,
}

impl<S: Simd, A: Activation> Step<S> for Apply<S, A> {
    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, _row: usize, c: usize, n: usize) {
        // SAFETY: the caller's promise; there is one row.
        unsafe {
            let at = self.terms.at::<FULL>(s, load::<S, FULL>(s, self.x.add(c), n), c, n);
            let u = self.terms.value::<FULL>(s, &at, c, n);
            store::<S, FULL>(s, self.y.add(c), act::value(s, self.act, u), n);
        }
    }
}

/// The sums over the channels of dhat and of dhat hat, where dhat = du gamma (1 + scale).
pub struct Sums<S: Simd> {
    one: S::V,
    two: S::V,
}

impl<S: Simd> Sums<S> {
    #[inline(always)]
    pub fn new(s: S) -> Self {
        Sums { one: s.splat(0.0), two: s.splat(0.0) }
    }

    /// (q, r) of dx = dhat rstd + x q + r.
    ///
    /// # Safety
    /// `stats` has two values.
    #[inline(always)]
    pub unsafe fn finish(self, s: S, stats: *const f32, channels: usize) -> (f32, f32) {
        // SAFETY: the caller's promise.
        let (mean, rstd) = unsafe { (*stats, *stats.add(1)) };
        let share = rstd / channels as f32;
        let q = -s.sum(self.two) * share * rstd;
        (q, -s.sum(self.one) * share - mean * q)
    }
}

/// The first pass of the gradient: dhat into `scaled`, the sums, and the gradients that are sums
/// over images (added) or belong to this image alone (written; null where not wanted).
pub struct Slopes<S: Simd> {
    pub terms: Terms<S>,
    pub x: *const f32,
    pub dy: *const f32,
    pub scaled: *mut f32,
    pub dbeta: *mut f32,
    pub dgamma: *mut f32,
    pub dshift: *mut f32,
    pub dscale: *mut f32,
}

impl<S: Simd> Slopes<S> {
    /// # Safety
    /// All pointers have `channels` values.
    #[inline(always)]
    pub unsafe fn run<A: Activation>(&self, s: S, act: A, channels: usize, sums: &mut Sums<S>) {
        let mut c = 0;
        // SAFETY: channels below the count.
        unsafe {
            while c + S::LANES <= channels {
                self.at::<A, true>(s, act, c, S::LANES, sums);
                c += S::LANES;
            }
            if c < channels {
                self.at::<A, false>(s, act, c, channels - c, sums);
            }
        }
    }

    #[inline(always)]
    unsafe fn at<A: Activation, const FULL: bool>(
        &self,
        s: S,
        act: A,
        c: usize,
        n: usize,
        sums: &mut Sums<S>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let at = self.terms.at::<FULL>(s, load::<S, FULL>(s, self.x.add(c), n), c, n);
            let u = self.terms.value::<FULL>(s, &at, c, n);
            let du = s.mul(load::<S, FULL>(s, self.dy.add(c), n), act::slope(s, act, u));
            let inner = s.mul(du, at.factor);
            let dhat = s.mul(inner, at.gamma);
            sums.one = s.add(sums.one, dhat);
            sums.two = s.fma(dhat, at.hat, sums.two);
            store::<S, FULL>(s, self.scaled.add(c), dhat, n);
            let (p, q) = (self.dbeta.add(c), self.dgamma.add(c));
            store::<S, FULL>(s, p, s.add(load::<S, FULL>(s, p, n), inner), n);
            store::<S, FULL>(s, q, s.fma(inner, at.hat, load::<S, FULL>(s, q, n)), n);
            if !self.dshift.is_null() {
                store::<S, FULL>(s, self.dshift.add(c), du, n);
            }
            if !self.dscale.is_null() {
                let before = s.fma(at.hat, at.gamma, at.beta);
                store::<S, FULL>(s, self.dscale.add(c), s.mul(du, before), n);
            }
        }
    }
}

/// The second pass: dx = dhat rstd + x q + r, plus what is to be added (null for nothing).
pub struct Input {
    pub x: *const f32,
    pub scaled: *const f32,
    pub addend: *const f32,
    pub rstd: f32,
    pub q: f32,
    pub r: f32,
    pub dx: *mut f32,
}

impl<S: Simd> Step<S> for Input {
    #[inline(always)]
    unsafe fn at<const FULL: bool>(&self, s: S, _row: usize, c: usize, n: usize) {
        // SAFETY: the caller's promise; there is one row.
        unsafe {
            let x = load::<S, FULL>(s, self.x.add(c), n);
            let mut dx = s.fma(x, s.splat(self.q), s.splat(self.r));
            if !self.addend.is_null() {
                dx = s.add(dx, load::<S, FULL>(s, self.addend.add(c), n));
            }
            let scaled = load::<S, FULL>(s, self.scaled.add(c), n);
            store::<S, FULL>(s, self.dx.add(c), s.fma(scaled, s.splat(self.rstd), dx), n);
        }
    }
}
