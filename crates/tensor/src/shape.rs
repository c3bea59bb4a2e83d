//! Shapes: up to [`MAX_RANK`] sizes, stored inline so that a shape is a plain value.

use std::fmt;
use std::ops::Deref;

/// The largest number of axes. A batch of volumes has five (N, Z, Y, X, C); one is spare.
pub const MAX_RANK: usize = 6;

/// The sizes of a tensor's axes, outermost first. A scalar has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    sizes: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of a single value.
    pub const SCALAR: Shape = Shape { rank: 0, sizes: [0; MAX_RANK] };

    /// # Panics
    /// If there are more than [`MAX_RANK`] sizes.
    pub fn new(sizes: &[usize]) -> Shape {
        assert!(sizes.len() <= MAX_RANK, "{} axes, {MAX_RANK} at most", sizes.len());
        let mut shape = Shape { rank: sizes.len() as u8, sizes: [0; MAX_RANK] };
        shape.sizes[..sizes.len()].copy_from_slice(sizes);
        shape
    }

    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of elements, or nothing where it does not fit into `usize`.
    pub fn checked_len(&self) -> Option<usize> {
        self.iter().try_fold(1usize, |n, &s| n.checked_mul(s))
    }

    /// The last size: the channels.
    pub fn channels(&self) -> usize {
        self.last().copied().unwrap_or(1)
    }

    /// Row-major steps, in elements. A shape without elements may have sizes whose product is beyond `usize`; its steps
    /// are used for nothing and stop there.
    pub fn strides(&self) -> [usize; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut step = 1usize;
        for axis in (0..self.rank()).rev() {
            strides[axis] = step;
            step = step.saturating_mul(self[axis]);
        }
        strides
    }

    /// The same shape with `size` at `axis`.
    pub fn with(mut self, axis: usize, size: usize) -> Shape {
        self.sizes[..self.rank as usize][axis] = size;
        self
    }

    /// What two operands of elementwise arithmetic broadcast to: axes are aligned at the end, and
    /// a size of 1 stretches. Nothing where they do not fit.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let mut out = Shape::new(&[1; MAX_RANK][..rank]);
        for i in 0..rank {
            let size = |s: &Shape| if i < s.rank() { s[s.rank() - 1 - i] } else { 1 };
            let (a, b) = (size(self), size(other));
            out.sizes[rank - 1 - i] = match (a, b) {
                _ if a == b => a,
                (1, _) => b,
                (_, 1) => a,
                _ => return None,
            };
        }
        Some(out)
    }

    /// This shape with leading ones up to `rank`.
    pub fn padded_to(&self, rank: usize) -> Shape {
        let mut sizes = [1; MAX_RANK];
        sizes[rank - self.rank()..rank].copy_from_slice(self);
        Shape::new(&sizes[..rank])
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.sizes[..self.rank as usize]
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape::new(sizes)
    }
}

impl<const R: usize> From<[usize; R]> for Shape {
    fn from(sizes: [usize; R]) -> Shape {
        Shape::new(&sizes)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, size) in self.iter().enumerate() {
            write!(f, "{}{size}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_the_last_axes() {
        let s = |x: &[usize]| Shape::new(x);
        assert_eq!(s(&[2, 1, 4]).broadcast(&s(&[3, 1])), Some(s(&[2, 3, 4])));
        assert_eq!(s(&[5]).broadcast(&Shape::SCALAR), Some(s(&[5])));
        assert_eq!(s(&[5]).broadcast(&s(&[4])), None);
    }

    #[test]
    fn a_shape_without_elements_may_have_any_sizes() {
        let shape = Shape::new(&[0, 1 << 40, 1 << 40]);
        assert_eq!((shape.checked_len(), shape.strides()[2]), (Some(0), 1));
    }
}
