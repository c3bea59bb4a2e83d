//! Maps of tensors for the card's tensor memory unit, which copies boxes of them: where a tensor lies, its sizes and
//! steps, and the box. The driver encodes them; they go to a kernel by value.

use crate::error::CudaError;
use cudarc::driver::sys;
use std::ffi::c_void;

/// What the unit's steps and addresses must be multiples of, in bytes.
pub(super) const STEP: usize = 16;

/// A tensor of elements of 1, 2 or 4 bytes: sizes innermost first, steps in elements from the second on. `exchanged` boxes are
/// 64 or 128 bytes wide and lie in shared memory with their 16-byte pieces exchanged, as matrix products take them.
pub(super) fn encode(
    address: u64,
    bytes: usize,
    sizes: &[usize],
    steps: &[usize],
    extent: &[usize],
    exchanged: bool,
) -> Result<Vec<u64>, CudaError> {
    let sizes: Vec<u64> = sizes.iter().map(|s| *s as u64).collect();
    let strides: Vec<u64> = steps.iter().map(|s| (*s * bytes) as u64).collect();
    let width = extent[0] * bytes;
    debug_assert!(!exchanged || width == 64 || width == 128);
    let extent: Vec<u32> = extent.iter().map(|s| *s as u32).collect();
    let ones = vec![1u32; sizes.len()];
    debug_assert!(strides.len() + 1 == sizes.len() && extent.len() == sizes.len());
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: arrays of the tensor's dimensions; the address is only noted.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            match bytes {
                1 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
                4 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
                _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            },
            sizes.len() as u32,
            address as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            extent.as_ptr(),
            ones.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            match width {
                _ if !exchanged => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
                _ => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            },
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()?;
    }
    Ok(map.opaque.to_vec())
}
