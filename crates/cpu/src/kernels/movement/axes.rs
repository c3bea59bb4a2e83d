//! Axes of a strided view, and counting through them.

use clearshot_tensor::MAX_RANK;

/// An axis of the output: its size, and the step that one along it is in the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    pub size: usize,
    pub step: usize,
}

/// Drops axes of one and joins neighbours that are one run in the operand too (or both repeat).
pub fn joined(axes: impl IntoIterator<Item = Axis>) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for axis in axes.into_iter().filter(|a| a.size != 1) {
        match out.last_mut() {
            Some(last) if last.step == axis.step * axis.size => {
                *last = Axis { size: last.size * axis.size, step: axis.step };
            }
            _ => out.push(axis),
        }
    }
    out
}

/// An index that counts upwards through axes, with its offset in the operand.
pub struct Count<'a> {
    axes: &'a [Axis],
    at: [usize; MAX_RANK],
    pub offset: usize,
}

impl<'a> Count<'a> {
    /// Begins at flat index `start`.
    pub fn new(axes: &'a [Axis], mut start: usize) -> Count<'a> {
        let mut count = Count { axes, at: [0; MAX_RANK], offset: 0 };
        for (i, axis) in axes.iter().enumerate().rev() {
            count.at[i] = start % axis.size;
            count.offset += count.at[i] * axis.step;
            start /= axis.size;
        }
        count
    }

    #[inline(always)]
    pub fn next(&mut self) {
        for (i, axis) in self.axes.iter().enumerate().rev() {
            self.at[i] += 1;
            self.offset += axis.step;
            if self.at[i] < axis.size {
                return;
            }
            self.at[i] = 0;
            self.offset -= axis.size * axis.step;
        }
    }
}

/// The number of elements.
pub fn len(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.size).product()
}
