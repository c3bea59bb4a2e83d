//! Conversion between the axes of a network's input or output and ours: batch, (Z,) Y, X, channels last.

use super::{ForeignError, unsuited};
use clearshot_onnx::package::read::{AxisKind, DescribedTensor};
use clearshot_tensor::{Shape, Tensor};

/// See the module.
pub(super) struct Axes {
    kinds: Vec<AxisKind>,
    /// The file's axes in our order.
    ours: Vec<usize>,
}

const ORDER: [AxisKind; 5] = [AxisKind::Batch, AxisKind::Z, AxisKind::Y, AxisKind::X, AxisKind::Channel];

impl Axes {
    pub fn of(tensor: &DescribedTensor) -> Result<Axes, ForeignError> {
        let kinds: Vec<AxisKind> = tensor.axes.iter().map(|a| a.kind.clone()).collect();
        let place = |kind: &AxisKind| kinds.iter().position(|k| k == kind);
        // What is not an image's has one element and goes first.
        let others = (0..kinds.len()).filter(|&i| !ORDER.contains(&kinds[i]));
        let ours: Vec<usize> = others.chain(ORDER.iter().filter_map(place)).collect();
        let space: Vec<&AxisKind> = kinds.iter().filter(|k| k.is_space()).collect();
        if space.len() < 2 || ours.len() != kinds.len() {
            return unsuited(format!("`{}` has not the axes of an image: {kinds:?}", tensor.name));
        }
        Ok(Axes { kinds, ours })
    }

    /// The sizes along (Z,) Y and X.
    pub fn space(&self, sizes: &[usize]) -> Vec<usize> {
        let is_space = |&&i: &&usize| self.kinds[i].is_space();
        self.ours.iter().filter(is_space).filter_map(|&i| sizes.get(i).copied()).collect()
    }

    pub fn channels(&self, sizes: &[usize]) -> usize {
        let at = self.kinds.iter().position(|k| *k == AxisKind::Channel);
        at.and_then(|i| sizes.get(i)).copied().unwrap_or(1)
    }

    pub fn samples(&self, sizes: &[usize]) -> usize {
        let at = self.kinds.iter().position(|k| *k == AxisKind::Batch);
        at.and_then(|i| sizes.get(i)).copied().unwrap_or(1)
    }

    /// Our values as a tensor with the axes and these sizes of the file.
    pub fn to_file(&self, values: &[f32], sizes: &[usize]) -> Tensor {
        let memory: Vec<usize> = self.ours.iter().map(|&i| sizes[i]).collect();
        let back: Vec<usize> =
            (0..sizes.len()).map(|i| self.ours.iter().position(|&o| o == i).unwrap_or(i)).collect();
        Tensor::f32(Shape::new(&memory), values.to_vec()).permuted(&back)
    }

    /// Our values from a tensor with the axes of the file.
    pub fn of_file(&self, tensor: &Tensor) -> Vec<f32> {
        tensor.permuted(&self.ours).to_f64().into_iter().map(|v| v as f32).collect()
    }
}
