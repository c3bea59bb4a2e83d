// What every kernel builds on: element types that convert to and from float, vectors of them, scalar
// functions, and sums over a block in a fixed order. Nothing is included, so that only the compiler
// library is needed where this runs. Files are compiled as C++17 behind this text.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct f8 { u8 bits; }; // e4m3, which is only stored
typedef float f32;
typedef int i32;

__device__ __forceinline__ float to_float(f32 x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float to_float(i32 x) { return (float)x; }

__device__ __forceinline__ void put(f32& to, float x) { to = x; }
__device__ __forceinline__ void put(bf16& to, float x) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
    u32 bits = __float_as_uint(x);
    to.bits = x != x ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
__device__ __forceinline__ void put(f16& to, float x) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
__device__ __forceinline__ void put(i32& to, float x) { to = (i32)x; }
// To the nearest of 0 to 255; what is not a number becomes 0.
__device__ __forceinline__ void put(u8& to, float x) {
    u32 y;
    asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(y) : "f"(x));
    to = (u8)y;
}

// Len elements that are moved together.
template <typename Elem, int Len> struct alignas(sizeof(Elem) * Len) Vec {
    Elem v[Len];
    __device__ __forceinline__ float at(int i) const { return to_float(v[i]); }
    __device__ __forceinline__ void set(int i, float x) { put(v[i], x); }
};

template <typename Elem, int Len> __device__ __forceinline__ Vec<Elem, Len> load(const Elem* p) {
    return *(const Vec<Elem, Len>*)p;
}
template <typename Elem, int Len> __device__ __forceinline__ void store(Elem* p, const Vec<Elem, Len>& v) {
    *(Vec<Elem, Len>*)p = v;
}

// Numbers that are stored together, each rounded.
template <int Len, typename Elem> __device__ __forceinline__ void store_rounded(Elem* p, const float (&x)[Len]) {
    Vec<Elem, Len> v;
#pragma unroll
    for (int i = 0; i < Len; i++) v.set(i, x[i]);
    store<Elem, Len>(p, v);
}

#if __CUDA_ARCH__ >= 890
// What is larger than 448 becomes 448.
__device__ __forceinline__ u32 two_f8(float low, float high) {
    u16 y;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
    return y;
}

template <int Len> __device__ __forceinline__ void store_rounded(f8* p, const float (&x)[Len]) {
    static_assert(Len % 4 == 0, "words");
    Vec<u32, Len / 4> v;
#pragma unroll
    for (int i = 0; i < Len / 4; i++) v.v[i] = two_f8(x[4 * i], x[4 * i + 1]) | two_f8(x[4 * i + 2], x[4 * i + 3]) << 16;
    *(Vec<u32, Len / 4>*)p = v;
}

// SiLU of twice these, as h + h tanh(h) in fp16: its error is a hundredth of what rounding to 8 bits costs.
template <int Len> __device__ __forceinline__ void store_silu_of_twice(f8* p, const float (&h)[Len]) {
    static_assert(Len % 4 == 0, "words");
    Vec<u32, Len / 4> v;
#pragma unroll
    for (int i = 0; i < Len / 4; i++) {
        u16 two[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            asm("{\n.reg .b32 h, t;\ncvt.rn.f16x2.f32 h, %2, %1;\ntanh.approx.f16x2 t, h;\nfma.rn.f16x2 t, h, t, h;\ncvt.rn.satfinite.e4m3x2.f16x2 %0, t;\n}"
                : "=h"(two[j])
                : "f"(h[4 * i + 2 * j]), "f"(h[4 * i + 2 * j + 1]));
        v.v[i] = two[0] | (u32)two[1] << 16;
    }
    *(Vec<u32, Len / 4>*)p = v;
}
#endif

// Scalar functions: u_ the value, d_ the derivative. FAST allows the approximations that 16-bit results
// do not show.
#ifdef FAST
__device__ __forceinline__ float f_exp(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}
__device__ __forceinline__ float f_div(float a, float b) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(b));
    return a * y;
}
#else
__device__ __forceinline__ float f_exp(float x) { return expf(x); }
__device__ __forceinline__ float f_div(float a, float b) { return a / b; }
#endif

__device__ __forceinline__ float u_neg(float x) { return -x; }
__device__ __forceinline__ float d_neg(float) { return -1.0f; }
__device__ __forceinline__ float u_abs(float x) { return fabsf(x); }
__device__ __forceinline__ float u_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x * 0.0f; }
__device__ __forceinline__ float d_abs(float x) { return u_sign(x); }
__device__ __forceinline__ float d_sign(float) { return 0.0f; }
__device__ __forceinline__ float u_round(float x) { return rintf(x); }
__device__ __forceinline__ float d_round(float) { return 0.0f; }
__device__ __forceinline__ float u_square(float x) { return x * x; }
__device__ __forceinline__ float d_square(float x) { return 2.0f * x; }
__device__ __forceinline__ float u_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ float d_sqrt(float x) { return 0.5f / sqrtf(x); }
__device__ __forceinline__ float u_recip(float x) { return 1.0f / x; }
__device__ __forceinline__ float d_recip(float x) { return -1.0f / (x * x); }
__device__ __forceinline__ float u_exp(float x) { return expf(x); }
__device__ __forceinline__ float d_exp(float x) { return expf(x); }
__device__ __forceinline__ float u_log(float x) { return logf(x); }
__device__ __forceinline__ float d_log(float x) { return 1.0f / x; }
__device__ __forceinline__ float u_sin(float x) { return sinf(x); }
__device__ __forceinline__ float d_sin(float x) { return cosf(x); }
__device__ __forceinline__ float u_cos(float x) { return cosf(x); }
__device__ __forceinline__ float d_cos(float x) { return -sinf(x); }
__device__ __forceinline__ float u_relu(float x) { return x < 0.0f ? 0.0f : x; }
__device__ __forceinline__ float d_relu(float x) { return x > 0.0f ? 1.0f : 0.0f; }
__device__ __forceinline__ float u_leaky(float x, float a) { return x > 0.0f ? x : a * x; }
__device__ __forceinline__ float d_leaky(float x, float a) { return x > 0.0f ? 1.0f : a; }
__device__ __forceinline__ float u_sigmoid(float x) { return f_div(1.0f, 1.0f + f_exp(-x)); }
__device__ __forceinline__ float d_sigmoid(float x) { return u_sigmoid(x) * u_sigmoid(-x); }
__device__ __forceinline__ float u_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ float d_tanh(float x) { float t = tanhf(x); return 1.0f - t * t; }
__device__ __forceinline__ float u_softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ __forceinline__ float d_softplus(float x) { return u_sigmoid(x); }
__device__ __forceinline__ float u_silu(float x) { return f_div(x, 1.0f + f_exp(-x)); }
__device__ __forceinline__ float d_silu(float x) {
    float s = f_div(1.0f, 1.0f + f_exp(-x));
    return s + x * (s - s * s);
}
__device__ __forceinline__ float u_gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ __forceinline__ float d_gelu(float x) {
    float density = expf(-0.5f * x * x) * 0.39894228040143268f;
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) + x * density;
}
__device__ __forceinline__ float gelu_inner(float x) {
    return 0.79788456080286536f * (x + 0.044715f * x * x * x);
}
__device__ __forceinline__ float u_gelu_tanh(float x) { return 0.5f * x * (1.0f + tanhf(gelu_inner(x))); }
__device__ __forceinline__ float d_gelu_tanh(float x) {
    float t = tanhf(gelu_inner(x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456080286536f * (1.0f + 0.134145f * x * x);
}
__device__ __forceinline__ float u_huber(float x, float d) {
    float a = fabsf(x);
    return a <= d ? 0.5f * x * x : d * (a - 0.5f * d);
}
__device__ __forceinline__ float d_huber(float x, float d) { return fminf(fmaxf(x, -d), d); }
__device__ __forceinline__ float u_smooth_l1(float x, float b) {
    float a = fabsf(x);
    return a < b ? 0.5f * x * x / b : a - 0.5f * b;
}
__device__ __forceinline__ float d_smooth_l1(float x, float b) { return fabsf(x) < b ? x / b : u_sign(x); }
__device__ __forceinline__ float u_add(float x, float c) { return x + c; }
__device__ __forceinline__ float d_add(float, float) { return 1.0f; }
__device__ __forceinline__ float u_mul(float x, float c) { return x * c; }
__device__ __forceinline__ float d_mul(float, float c) { return c; }
__device__ __forceinline__ float u_pow(float x, float p) { return powf(x, p); }
__device__ __forceinline__ float d_pow(float x, float p) { return p * powf(x, p - 1.0f); }
__device__ __forceinline__ float u_clamp(float x, float lo, float hi) { return x != x ? x : fminf(fmaxf(x, lo), hi); }
__device__ __forceinline__ float d_clamp(float x, float lo, float hi) { return x >= lo && x <= hi ? 1.0f : 0.0f; }
__device__ __forceinline__ float u_snap(float x, float step, float first, float last) {
    return u_clamp(rintf(x / step), first, last) * step;
}
__device__ __forceinline__ float d_snap(float, float, float, float) { return 0.0f; }
__device__ __forceinline__ float u_none(float x) { return x; }
__device__ __forceinline__ float d_none(float) { return 1.0f; }

__device__ __forceinline__ float b_add(float a, float b) { return a + b; }
__device__ __forceinline__ float b_sub(float a, float b) { return a - b; }
__device__ __forceinline__ float b_mul(float a, float b) { return a * b; }
__device__ __forceinline__ float b_div(float a, float b) { return a / b; }
__device__ __forceinline__ float b_max(float a, float b) { return a > b ? a : b; }
__device__ __forceinline__ float b_min(float a, float b) { return b > a ? a : b; }
__device__ __forceinline__ float b_pow(float a, float b) { return powf(a, b); }
__device__ __forceinline__ float b_greater(float a, float b) { return a > b ? 1.0f : 0.0f; }

// The sum over a block of up to 1024 threads, the same in every thread. `scratch` holds 33 values.
template <typename Sum> __device__ __forceinline__ Sum block_sum(Sum x, Sum* scratch) {
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
    int warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        Sum y = (int)threadIdx.x < warps ? scratch[threadIdx.x] : (Sum)0;
        for (int o = 16; o > 0; o >>= 1) y += __shfl_xor_sync(0xffffffffu, y, o);
        if (threadIdx.x == 0) scratch[32] = y;
    }
    __syncthreads();
    return scratch[32];
}
