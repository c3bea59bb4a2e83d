//! Operations that move values and compute nothing: transpose, broadcast, concat, slice, pad. They move
//! bits, so whole numbers too. None may run in place. (A reshape is a view and has no kernel.)
//!
//! Each writes its output once, in order, in tasks that are ranges of it. What a task reads is found
//! from its first index and then counted on.

mod axes;
mod join;
mod pad;
mod pad_grad;
mod transpose;

#[cfg(test)]
mod tests;

pub use join::{Concat, Slice};
pub use pad::Pad;
pub use pad_grad::PadGrad;
pub use transpose::{Broadcast, Transpose};
