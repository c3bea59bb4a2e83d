//! Resolved values of keys: the device, the options of compilation, sizes in bytes, and the number of epochs.

use super::{CompileMode, Complexity, RunConfig};
use crate::error::{Result, setting};
use clearshot_graph::train::{BUCKET_OF_GPUS, BUCKET_OF_PROCESSORS};
use clearshot_runtime::{Device, DeviceName, Options, Precision};

impl RunConfig {
    fn gpu(&self, ordinal: usize) -> Result<Device> {
        let needed = |why| format!("{why}; trainer.device=cpu trains on the CPU, which takes far longer");
        Device::cuda(ordinal).or_else(|why| setting("trainer.device", &self.trainer.device, needed(why)))
    }

    /// # Errors
    /// If there is no such device, or it cannot be used: why.
    pub fn device(&self) -> Result<Device> {
        let threads = Some(self.performance.threads).filter(|n| *n > 0);
        match self.trainer.device.parse::<DeviceName>() {
            Ok(DeviceName::Cuda(ordinal)) => self.gpu(ordinal),
            Ok(other) => other
                .device(threads)
                .or_else(|why| setting("trainer.device", &self.trainer.device, why.to_string())),
            Err(_) => setting("trainer.device", &self.trainer.device, "cpu, cuda, cuda:N or auto"),
        }
    }

    /// # Errors
    /// If the precision or the budget is none.
    pub fn options(&self) -> Result<Options> {
        let precision: Precision = match self.performance.precision.parse() {
            Ok(asked @ (Precision::Fp8 | Precision::Int8)) => {
                let why = format!("{asked} is for inference; train in bf16");
                return setting("performance.precision", &self.performance.precision, &why);
            }
            Ok(precision) => precision,
            Err(why) => return setting("performance.precision", &self.performance.precision, why),
        };
        let budget = bytes("performance.budget", self.performance.budget.as_deref())?;
        Ok(Options { optimise: self.model.compile_mode != CompileMode::None, budget, precision })
    }

    /// Bytes of decoded files that may be held, where the configuration says.
    ///
    /// # Errors
    /// If it is not a size.
    pub fn file_memory(&self) -> Result<Option<usize>> {
        bytes("data.memory", self.data.memory.as_deref())
    }

    /// Bytes of gradients that travel together between such devices, at least.
    ///
    /// # Errors
    /// If it is not a size.
    pub fn bucket(&self, device: &Device) -> Result<usize> {
        let usual = match device {
            Device::Cpu { .. } => BUCKET_OF_PROCESSORS,
            Device::Cuda { .. } => BUCKET_OF_GPUS,
        };
        Ok(self.given_bucket()?.unwrap_or(usual))
    }

    pub(super) fn given_bucket(&self) -> Result<Option<usize>> {
        bytes("distributed.bucket", self.distributed.bucket.as_deref())
    }

    /// # Errors
    /// If it is not a size.
    pub fn memory(&self) -> Result<Option<usize>> {
        bytes("performance.memory", self.performance.memory.as_deref())
    }
}

/// A size in bytes, with a unit or without.
fn bytes(key: &'static str, text: Option<&str>) -> Result<Option<usize>> {
    let Some(text) = text else { return Ok(None) };
    match clearshot_runtime::bytes::parse(text) {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => setting(key, text, "a size as 4GiB or 800MB"),
    }
}

/// How often each image of a data set is seen: more often the more images there are, by the logarithm of their
/// number, and the more they differ.
pub fn epochs(images: usize, complexity: Complexity) -> u64 {
    let factor = match complexity {
        Complexity::Simple => 0.5,
        Complexity::Medium => 1.0,
        Complexity::Complex => 1.5,
    };
    let size = (images as f64 / 1000.0).max(1.0).log10();
    (100.0 * factor * (1.0 + size)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_epochs() {
        assert_eq!(bytes("k", Some("4GiB")).unwrap(), Some(4 << 30));
        assert_eq!(bytes("k", Some("1.5 MB")).unwrap(), Some(1_500_000));
        assert_eq!(bytes("k", Some("4g")).unwrap(), Some(4 << 30));
        assert!(bytes("k", Some("-1GB")).is_err() && bytes("k", Some("0")).is_err());
        assert_eq!(epochs(10, Complexity::Simple), 50);
        assert_eq!(epochs(1000, Complexity::Medium), 100);
        assert_eq!(epochs(10_000, Complexity::Complex), 300);
    }
}
