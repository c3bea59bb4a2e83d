//! Finding GPUs: what is there, and if nothing can be used, why.
//!
//! Nothing of CUDA is needed to build or to start the program. Libraries are loaded when a GPU is first
//! asked for, by the names under which systems install them; each that is missing is named with where it
//! was looked for.

use crate::error::Unavailable;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};
use std::fmt;

/// The oldest driver: its CUDA version as drivers count.
const OLDEST_DRIVER: i32 = 12_000;
/// The least compute capability: the first with tensor cores, which take 16-bit floats.
const LEAST_CAPABILITY: (i32, i32) = (7, 0);

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub ordinal: usize,
    pub name: String,
    pub capability: (i32, i32),
    pub memory: usize,
    pub multiprocessors: usize,
    /// The card's own number, which no other has.
    pub uuid: String,
    /// The CUDA version that the driver supports, as drivers count.
    pub driver: i32,
}

impl Gpu {
    /// Whether the tensor cores take bfloat16.
    pub fn has_bf16(&self) -> bool {
        self.capability >= (8, 0)
    }

    /// Whether the tensor cores take fp32 rounded to TF32.
    pub fn has_tf32(&self) -> bool {
        self.capability >= (8, 0)
    }

    /// Whether there are convolutions of 8 bits for it, of floats and of whole numbers: by warpgroups, of this capability alone.
    pub fn has_eighths(&self) -> bool {
        self.capability == (9, 0)
    }

    /// The architecture that kernels are compiled for; for 9.0 with the instructions that no later card has.
    pub(crate) fn arch(&self) -> String {
        let only = if self.capability == (9, 0) { "a" } else { "" };
        format!("{}{}{only}", self.capability.0, self.capability.1)
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, compute capability {}.{}, driver for CUDA {}.{}",
            self.name,
            clearshot_graph::plan::human(self.memory),
            self.capability.0,
            self.capability.1,
            self.driver / 1000,
            self.driver % 1000 / 10
        )
    }
}

/// The GPUs that can be used.
///
/// # Errors
/// Why there are none.
pub fn gpus() -> Result<Vec<Gpu>, Unavailable> {
    // SAFETY: loading the driver library runs its initialisers, as any CUDA program does.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver { looked: names(&["cuda", "nvcuda"]) });
    }
    result::init().map_err(|e| Unavailable::NoDevice(e.to_string()))?;
    let mut driver = 0;
    // SAFETY: writes one number.
    let _ = unsafe { sys::cuDriverGetVersion(&mut driver) };
    if driver < OLDEST_DRIVER {
        return Err(Unavailable::OldDriver { have: driver, want: OLDEST_DRIVER });
    }
    let count = result::device::get_count().map_err(|e| Unavailable::NoDevice(e.to_string()))?;
    let found: Vec<Gpu> = (0..count).filter_map(|i| describe(i, driver)).collect();
    if found.is_empty() {
        return Err(Unavailable::NoDevice("it counts none".into()));
    }
    if let (true, Some(old)) = (found.iter().all(|g| g.capability < LEAST_CAPABILITY), found.first()) {
        return Err(Unavailable::OldCard {
            name: old.name.clone(),
            have: old.capability,
            want: LEAST_CAPABILITY,
        });
    }
    libraries()?;
    Ok(found.into_iter().filter(|g| g.capability >= LEAST_CAPABILITY).collect())
}

fn describe(ordinal: i32, driver: i32) -> Option<Gpu> {
    let device = result::device::get(ordinal).ok()?;
    // SAFETY: a device that the driver just gave.
    unsafe {
        let attribute = |a| result::device::get_attribute(device, a).ok();
        Some(Gpu {
            ordinal: ordinal as usize,
            name: result::device::get_name(device).ok()?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory: result::device::total_mem(device).ok()?,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
            uuid: result::device::get_uuid(device).ok()?.bytes.map(|b| format!("{:02x}", b as u8)).concat(),
            driver,
        })
    }
}

/// Checks that the libraries beside the driver can be loaded.
fn libraries() -> Result<(), Unavailable> {
    // SAFETY: as for the driver library.
    let found = unsafe {
        [
            (cudarc::nvrtc::sys::is_culib_present(), "nvrtc", "compiles kernels", "nvrtc"),
            (cudarc::cublaslt::sys::is_culib_present(), "cublasLt", "matrix products", "cublasLt"),
            (cudarc::cudnn::sys::is_culib_present(), "cudnn", "convolutions", "cudnn"),
        ]
    };
    match found.into_iter().find(|(there, ..)| !there) {
        None => Ok(()),
        Some((_, library, what, name)) => {
            Err(Unavailable::NoLibrary { library, what, looked: names(&[name]) })
        }
    }
}

/// The names that a library is looked for under, those of versions and other systems left out.
fn names(libraries: &[&str]) -> Vec<String> {
    let all = libraries.iter().flat_map(|l| cudarc::get_lib_name_candidates(l));
    let plain = |n: &String| !n.split('.').next().unwrap_or("").ends_with(|c: char| c.is_ascii_digit());
    let mut kept: Vec<String> = vec![];
    for name in all.filter(plain) {
        if !kept.contains(&name) {
            kept.push(name);
        }
    }
    kept
}
