//! Compiles code twice: for any machine, and for machines with AVX2.
//!
//! Only the width of vectors differs. Products and sums are not contracted, so results are bit-identical.

/// Runs a closure with the widest vectors that the machine has. What the closure calls must be inlined into it to profit.
#[inline(always)]
pub(crate) fn widest<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has what the function is compiled for.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}
