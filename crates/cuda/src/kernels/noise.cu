// Noise from keys: the operations of the tensor crate's `noise`, one by one, so that the bits are the same.
// Compiled without contraction: every fused multiply-add is written as one.

__device__ __forceinline__ void philox(u32 c[4], u32 k0, u32 k1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        if (round > 0) { k0 += 0x9E3779B9u; k1 += 0xBB67AE85u; }
        u64 a = (u64)c[0] * 0xD2511F53u, b = (u64)c[2] * 0xCD9E8D57u;
        u32 n0 = (u32)(b >> 32) ^ c[1] ^ k0, n2 = (u32)(a >> 32) ^ c[3] ^ k1;
        c[0] = n0; c[1] = (u32)b; c[2] = n2; c[3] = (u32)a;
    }
}

__device__ __forceinline__ float unit(u32 word) {
    return __fmul_rn(__fadd_rn((float)(word >> 9), 0.5f), 1.0f / 8388608.0f);
}

__device__ __forceinline__ float ln_unit(float x) {
    u32 shifted = __float_as_uint(x) - 0x3F3504F3u;
    int e = (int)shifted >> 23;
    float m = __uint_as_float((shifted & 0x007FFFFFu) + 0x3F3504F3u);
    float s = __fdiv_rn(__fadd_rn(m, -1.0f), __fadd_rn(m, 1.0f));
    float z = __fmul_rn(s, s);
    float p = __fmaf_rn(0.22222198f, z, 0.2857143f);
    p = __fmaf_rn(p, z, 0.4f);
    p = __fmaf_rn(p, z, 0.6666667f);
    float ln_m = __fmaf_rn(__fmul_rn(p, z), s, __fmul_rn(2.0f, s));
    return __fmaf_rn((float)e, 0.6931471805599453f, ln_m);
}

__device__ __forceinline__ float flip(float x, int turns) {
    return __uint_as_float(__float_as_uint(x) ^ ((u32)turns & 2u) << 30);
}

__device__ __forceinline__ void sin_cos_turn(float u, float& sine, float& cosine) {
    float four = __fmul_rn(u, 4.0f), quarter = rintf(four);
    float r = __fmul_rn(__fadd_rn(four, -quarter), 1.5707963267948966f), z = __fmul_rn(r, r);
    float s = __fmaf_rn(-1.950789e-4f, z, 8.332151e-3f);
    s = __fmaf_rn(s, z, -0.16666654f);
    s = __fmaf_rn(__fmul_rn(s, z), r, r);
    float c = __fmaf_rn(2.4433157e-5f, z, -1.3887316e-3f);
    c = __fmaf_rn(c, z, 4.1666646e-2f);
    c = __fmaf_rn(c, z, -0.5f);
    c = __fmaf_rn(c, z, 1.0f);
    int turns = (int)quarter;
    sine = flip(turns & 1 ? c : s, turns);
    cosine = flip(turns & 1 ? s : c, turns + 1);
}

__device__ __forceinline__ void normal_pair(u32 a, u32 b, float& x, float& y) {
    float radius = __fsqrt_rn(__fmul_rn(-2.0f, ln_unit(unit(a)))), s, c;
    sin_cos_turn(unit(b), s, c);
    x = __fmul_rn(radius, c);
    y = __fmul_rn(radius, s);
}

// The values of one block of a stream.
__device__ __forceinline__ void block_of(const i32* key, u64 block, int normal, float out[4]) {
    u32 c[4] = {(u32)block, (u32)(block >> 32), (u32)key[2], (u32)key[3]};
    philox(c, (u32)key[0], (u32)key[1]);
    if (normal) {
        normal_pair(c[0], c[1], out[0], out[1]);
        normal_pair(c[2], c[3], out[2], out[3]);
    } else {
        for (int i = 0; i < 4; i++) out[i] = unit(c[i]);
    }
}

// `each` elements for every key; one thread a block of four.
extern "C" __global__ void noise(const i32* keys, O* y, i64 each, i64 count, int normal) {
    i64 blocks = (each + 3) / 4;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < blocks * (count / each); i += (i64)gridDim.x * blockDim.x) {
        i64 key = i / blocks, first = i % blocks * 4;
        float values[4];
        block_of(keys + key * 4, (u64)(first / 4), normal, values);
        for (int e = 0; e < 4 && first + e < each; e++) put(y[key * each + first + e], values[e]);
    }
}

extern "C" __global__ void dropout(const T* x, const i32* keys, O* y, i64 each, i64 count, float rate, float kept) {
    i64 blocks = (each + 3) / 4;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < blocks * (count / each); i += (i64)gridDim.x * blockDim.x) {
        i64 key = i / blocks, first = i % blocks * 4;
        float values[4];
        block_of(keys + key * 4, (u64)(first / 4), 0, values);
        for (int e = 0; e < 4 && first + e < each; e++) {
            i64 at = key * each + first + e;
            put(y[at], values[e] < rate ? 0.0f : to_float(x[at]) * kept);
        }
    }
}
