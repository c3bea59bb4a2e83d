// Numbers of 16 bits: bf16 with -DELEM_BF16, else fp16; with -DELEM_TF32 numbers of 32 bits, of which matrix units read the
// first 19. Stands before the kernels of matrix units; includes nothing, so that NVRTC needs no header path.

typedef unsigned short half_t;
typedef unsigned int u32;

#if defined(ELEM_TF32)
#define ELEM "tf32"
constexpr int ELEM_BYTES = 4;
#elif defined(ELEM_BF16)
#define ELEM "bf16"
constexpr int ELEM_BYTES = 2;
#else
#define ELEM "f16"
constexpr int ELEM_BYTES = 2;
#endif

__device__ __forceinline__ float to_float(half_t x) {
#ifdef ELEM_BF16
    return __uint_as_float((u32)x << 16);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#endif
}

__device__ __forceinline__ half_t to_half(float x) {
    half_t y;
    asm("cvt.rn." ELEM ".f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." ELEM "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

__device__ __forceinline__ float low_float(u32 pair) { return to_float((half_t)(pair & 0xffffu)); }
__device__ __forceinline__ float high_float(u32 pair) { return to_float((half_t)(pair >> 16)); }

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
