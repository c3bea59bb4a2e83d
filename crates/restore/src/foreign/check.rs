//! The test of a package: whether its network gives the expected output for the test input.

use super::{Foreign, ForeignError};
use clearshot_onnx::PackageError;
use clearshot_runtime::Precision;
use clearshot_tensor::Tensor;

/// How near a value of the test's output must be: so much, and so much of the value itself.
const ABSOLUTE: f64 = 1e-3;
const RELATIVE: f64 = 1e-3;
/// The share of values that may be further off, where thresholds turn little differences into large ones.
const FAR: f64 = 1e-4;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// The largest difference divided by the largest value.
    pub difference: f64,
}

impl Foreign {
    /// Runs the test of the package in fp32; `None` if it has none.
    ///
    /// # Errors
    /// If the network does not run, or its output differs from the expected one.
    pub fn check(&mut self) -> Result<Option<Checked>, ForeignError> {
        let Some([given, expected]) = self.package.test.clone() else { return Ok(None) };
        let path = self.package.path.display().to_string();
        let wrong = |why: String| ForeignError::Test(format!("{path}: its own test: {why}"));
        let (sizes, wanted) = (given.shape().to_vec(), expected.shape().to_vec());
        if sizes.len() != self.package.input.axes.len() || wanted.len() != self.package.output.axes.len() {
            return Err(wrong(format!("its tensors have the sizes {sizes:?} and {wanted:?}")));
        }
        let (size, samples) = (self.axes[0].space(&sizes), self.axes[0].samples(&sizes));
        let imported = self.package.import(samples, &size).map_err(PackageError::from)?;
        if imported.inputs[0].sizes != sizes || imported.outputs[0].sizes != wanted {
            return Err(wrong(format!(
                "goes from {sizes:?} to {wanted:?}, and the network from {:?} to {:?}",
                imported.inputs[0].sizes, imported.outputs[0].sizes
            )));
        }
        self.ready = None;
        self.ready_for(size, imported, Precision::F32)?;
        let made = self.tested(&given, samples, &wrong)?;
        self.ready = None;
        let expected = self.axes[1].of_file(&expected);
        let largest = expected.iter().fold(0.0f64, |n, v| n.max(f64::from(*v).abs()));
        let (mut far, mut difference) = (0usize, 0.0f64);
        for (a, b) in made.iter().zip(&expected) {
            let d = (f64::from(*a) - f64::from(*b)).abs();
            difference = difference.max(d);
            far += usize::from(d.is_nan() || d > ABSOLUTE + RELATIVE * f64::from(*b).abs());
        }
        let checked = Checked { difference: difference / largest.max(f64::MIN_POSITIVE) };
        if far as f64 > FAR * expected.len() as f64 {
            return Err(wrong(format!(
                "{far} of {} values are not what the package says (largest difference {difference:.3e}, largest value {largest:.3e}); the file was changed, or this program reads it wrongly",
                expected.len()
            )));
        }
        Ok(Some(checked))
    }

    /// Whole test images through the steps and the network.
    fn tested(
        &mut self,
        given: &Tensor,
        samples: usize,
        wrong: &dyn Fn(String) -> ForeignError,
    ) -> Result<Vec<f32>, ForeignError> {
        let raw = self.axes[0].of_file(given);
        let mut values = raw.clone();
        let each = (values.len() / samples.max(1)).max(1);
        for image in values.chunks_mut(each) {
            for step in &self.package.input.steps {
                step.apply(image, self.channels, None).map_err(wrong)?;
            }
        }
        let Some(ready) = &mut self.ready else { return Err(wrong("it is not ready".into())) };
        let mut made = ready.answer(&values, &self.axes)?;
        let out = (made.len() / samples.max(1)).max(1);
        for (image, input) in made.chunks_mut(out).zip(raw.chunks(each)) {
            for step in &self.package.output.steps {
                step.apply(image, self.made, Some((input, self.channels))).map_err(wrong)?;
            }
        }
        Ok(made)
    }
}
