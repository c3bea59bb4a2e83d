// Attention backward, bf16 and fp16. Probabilities are recomputed from lse, once for dk and dv and once for dq, so that
// no two blocks ever add to the same output: results are bit-equal from run to run.
//
// attention_delta(o, do_, lse, delta, heads, sq, o_row, do_row, rows)
//   grid  ceil(rows / 256) with rows = B H sq, block 256; delta: 2 rows floats: -rowsum(o do), then -lse log2(e)
// attention_backward_prepare(q, k, v, do_, delta, work, heads, sq, sk, q_row, k_row, v_row, do_row, scale, rows), only for
//   HEAD_DIM 8, after attention_delta and before the following; grid B * H, block 512;
//   work: B H (256 + 32 round_up(sk, 256) + 48 round_up(sq, 256)) bytes
// attention_backward_kv(q, k, v, do_, delta, dk, dv, work, heads, sq, sk, q_row, k_row, v_row, do_row, dk_row, dv_row, scale, rows)
//   grid  ceil(sk / (16 KV_WARPS KV_MT)) * B * H, block 32 KV_WARPS,
//   dynamic shared memory 8 KV_QUERIES PITCH + 32 KV_QUERIES bytes
// attention_backward_q(q, k, v, do_, delta, dq, work, heads, sq, sk, q_row, k_row, v_row, do_row, dq_row, scale, rows)
//   grid  ceil(sq / (16 DQ_WARPS DQ_MT)) * B * H, block 32 DQ_WARPS, dynamic shared memory 8 DQ_KEYS PITCH bytes
// Options besides the prelude's: -DKV_WARPS -DKV_MT -DKV_QUERIES, -DDQ_WARPS -DDQ_MT -DDQ_KEYS (MT: 16-row tiles per
// warp; queries and keys per stage are multiples of 32, for HEAD_DIM 8 of 64 and divisors of 256).
//
// Heads of 8: a head of bf16 whose bound allows it (see the prelude) takes its exponentials and products in fp16. In other
// heads the scaled rows enter the matrix unit as sums of two 16-bit numbers and its accumulator starts at
// -lse log2(e), so that it hands out the exponent of p itself; others scale and subtract in one FMA.

// Blocks per multiprocessor that the compiler leaves registers for.
#ifndef KV_BLOCKS
#define KV_BLOCKS (HEAD_DIM <= 16 && KV_MT <= 2 && KV_WARPS <= 8 ? 16 / KV_WARPS : HEAD_DIM <= 32 && KV_WARPS <= 6 ? 12 / KV_WARPS : 1)
#endif
#ifndef DQ_BLOCKS
#define DQ_BLOCKS (HEAD_DIM == 8 && DQ_WARPS <= 10 ? 20 / DQ_WARPS \
                 : HEAD_DIM == 16 && DQ_WARPS <= 8 ? 16 / DQ_WARPS : HEAD_DIM == 32 && DQ_WARPS <= 6 ? 12 / DQ_WARPS : 1)
#endif

constexpr bool SPLIT = HEAD_DIM == 8;
constexpr int CHUNK = HEAD_DIM <= 32 ? 32 : 16; // columns of p that a warp holds at a time
constexpr int N_TILES = CHUNK / 8;
constexpr int STEPS_16 = CHUNK / 16;

extern "C" __global__ void __launch_bounds__(256) attention_delta(const half_t* __restrict__ o, const half_t* __restrict__ do_,
                                                                const float* __restrict__ lse, float* __restrict__ delta, int heads,
                                                                int sq, int o_row, int do_row, long long rows) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows) return;
    // Heads vary fastest, as in memory.
    int h = (int)(i % heads);
    long long row = i / heads, b = row / sq, s = row % sq;
    const half_t* x = o + row * o_row + h * D;
    const half_t* y = do_ + row * do_row + h * D;
    float sum = 0.f;
    if constexpr (VEC == 8) {
#pragma unroll
        for (int c = 0; c < D; c += 8) {
            uint4 a = *(const uint4*)(x + c), g = *(const uint4*)(y + c);
            u32 as[4] = {a.x, a.y, a.z, a.w}, gs[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum = fmaf(low_float(as[j]), low_float(gs[j]), sum);
                sum = fmaf(high_float(as[j]), high_float(gs[j]), sum);
            }
        }
    } else {
        for (int c = 0; c < D; c++) sum = fmaf(to_float(x[c]), to_float(y[c]), sum);
    }
    long long at = (b * heads + h) * sq + s;
    delta[at] = -sum;
    delta[rows + at] = -lse[at] * LOG2E;
}

// acc[m][n] += rows of A (16 rows per m) times CHUNK rows of a tile (as columns): contraction along the head.
template <int MT, bool DOUBLE>
__device__ __forceinline__ void multiply_rows(float (&acc)[MT][N_TILES][4], const u32 (&a)[MT][K_STEPS][4], u32 tile_at) {
    if constexpr (HEAD_DIM == 8) {
        u32 b[4];
        ldmatrix(b, tile_at);
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                if constexpr (DOUBLE) mma16(acc[m][n], a[m][0], b[n], b[n], acc[m][n]);
                else mma8(acc[m][n], a[m][0][0], a[m][0][1], b[n], acc[m][n]);
            }
    } else {
#pragma unroll
        for (int ks = 0; ks < K_STEPS; ks++)
#pragma unroll
            for (int n = 0; n < N_TILES; n += 2) {
                u32 b[4];
                ldmatrix(b, tile_at + 2 * (n * 8 * PITCH + ks * 16));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma16(acc[m][n], a[m][ks], b[0], b[1], acc[m][n]);
                    mma16(acc[m][n + 1], a[m][ks], b[2], b[3], acc[m][n + 1]);
                }
            }
    }
}

// acc[m] += A (16 rows, CHUNK columns) times CHUNK rows of a tile: contraction along its rows.
template <int MT>
__device__ __forceinline__ void multiply_columns(float (&acc)[MT][D_TILES][4], const u32 (&a)[MT][STEPS_16][4], u32 tile_at) {
    if constexpr (HEAD_DIM == 8) {
        u32 b[4];
        ldmatrix_transposed(b, tile_at);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            mma16(acc[m][0], a[m][0], b[0], b[1], acc[m][0]);
            mma16(acc[m][0], a[m][STEPS_16 - 1], b[2], b[3], acc[m][0]);
        }
    } else {
#pragma unroll
        for (int s = 0; s < STEPS_16; s++)
#pragma unroll
            for (int d = 0; d < D_TILES; d += 2) {
                u32 b[4];
                ldmatrix_transposed(b, tile_at + 2 * (s * 16 * PITCH + d * 8));
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma16(acc[m][d], a[m][s], b[0], b[1], acc[m][d]);
                    mma16(acc[m][d + 1], a[m][s], b[2], b[3], acc[m][d + 1]);
                }
            }
    }
}

template <int MT> __device__ __forceinline__ void clear(float (&acc)[MT][D_TILES][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int d = 0; d < D_TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) acc[m][d][i] = 0.f;
}

template <int MT>
__device__ __forceinline__ void store_rows(half_t* to, int row_stride, int row0, int rows, const float (&acc)[MT][D_TILES][4], float factor,
                                           int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int d = 0; d < D_TILES; d++)
                store_pair(to, row_stride, row0 + m * 16 + r * 8 + g, rows, d * 8 + t * 2, acc[m][d][2 * r] * factor,
                           acc[m][d][2 * r + 1] * factor);
}

#if HEAD_DIM == 8

constexpr int PREPARE_THREADS = 512;

// The scratch of one head: a header of 256 bytes; k, v (fp16, scaled); q times scale log2(e), do over the row's sum (fp16,
// scaled); and what the matrix unit starts from, (x0, x1, y0, y1) of two rows for the exponents of a pair of queries, and
// (x0, x1, x0, x1) of minus delta (fp16, scaled) for the products do v.
struct Scratch {
    float* header; // 0: 0 not fast, 1 fast, 2 fast and normal; scales of k, v, do; the mantissa mask
    half_t *k, *v, *q, *g;
    float4* starts;
    half_t* minus;
    int keys, queries;

    __device__ __forceinline__ Scratch(void* work, int bh, int sq, int sk) {
        keys = (sk + 255) / 256 * 256, queries = (sq + 255) / 256 * 256;
        char* at = (char*)work + bh * (256ll + 32ll * keys + 48ll * queries);
        header = (float*)at;
        k = (half_t*)(at + 256), v = k + 8ll * keys, q = v + 8ll * keys, g = q + 8ll * queries;
        starts = (float4*)(g + 8ll * queries), minus = (half_t*)(starts + queries / 2);
    }
};

#ifndef BWD_MUFU
#define BWD_MUFU 8 // as FWD_MUFU
#endif

extern "C" __global__ void __launch_bounds__(PREPARE_THREADS) attention_backward_prepare(
    const half_t* __restrict__ q, const half_t* __restrict__ k, const half_t* __restrict__ v, const half_t* __restrict__ do_,
    const float* __restrict__ delta, void* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row, int v_row, int do_row,
    float scale, long long rows) {
#ifdef ELEM_BF16
    __shared__ float scratch[PREPARE_THREADS / 32][12], tops[PREPARE_THREADS / 32][2];
    int bh = blockIdx.x, h = bh % heads, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    long long b = bh / heads;
    q += b * sq * q_row + h * D;
    do_ += b * sq * do_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    delta += (long long)bh * sq;
    Scratch to(work, bh, sq, sk);
    float q_top = 0.f, g_top = 0.f;
#pragma unroll 4
    for (int i = threadIdx.x; i < sq; i += PREPARE_THREADS) {
        u32 x[4], y[4];
        load_head(x, q, q_row, i);
        load_head(y, do_, do_row, i);
        float square = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = low_float(x[j]), c = high_float(x[j]);
            square = fmaf(a, a, fmaf(c, c, square));
            g_top = fmaxf(g_top, fmaxf(fabsf(low_float(y[j])), fabsf(high_float(y[j]))));
        }
        q_top = fmaxf(q_top, square);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        q_top = fmaxf(q_top, __shfl_xor_sync(~0u, q_top, i));
        g_top = fmaxf(g_top, __shfl_xor_sync(~0u, g_top, i));
    }
    if (lane == 0) tops[warp][0] = q_top, tops[warp][1] = g_top;
    KeyStatistics s = key_statistics<PREPARE_THREADS>(k, v, k_row, v_row, sk, scratch);
    for (int i = 0; i < PREPARE_THREADS / 32; i++) q_top = fmaxf(q_top, tops[i][0]), g_top = fmaxf(g_top, tops[i][1]);
    float bound = sqrtf(q_top) * fabsf(scale * LOG2E), largest = 1e30f;
    // With few keys a probability of 2^s over a row's sum may leave fp16; written so that a NaN is not fast.
    bool fast = sk >= 64 && bound * s.k_top <= ROUNDING_BOUND && bound * s.spread <= FAST_BOUND && g_top < largest && s.v_top < largest;
    bound *= s.spread;
    float k_scale = unit_scale(s.k_top), v_scale = unit_scale(s.v_top), g_scale = unit_scale(g_top) * 512.f;
    if (threadIdx.x == 0) {
        to.header[0] = !fast ? 0.f : bound <= NORMAL_BOUND ? 2.f : 1.f;
        to.header[1] = k_scale, to.header[2] = v_scale, to.header[3] = g_scale;
        to.header[4] = __uint_as_float(MANTISSA);
        for (int j = 0; j < 4; j++) to.header[8 + j] = start_value(BWD_MUFU, 0, j / 2), to.header[12 + j] = start_value(BWD_MUFU, 1, j / 2);
    }
    if (!fast) return;
#pragma unroll 2
    for (int i = threadIdx.x; i < to.keys; i += PREPARE_THREADS) {
        u32 x[4] = {}, y[4] = {};
        if (i < sk) {
            load_head(x, k, k_row, i);
            load_head(y, v, v_row, i);
        }
        u32 kx[4], vy[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            kx[j] = pack_fp16(low_float(x[j]) * k_scale, high_float(x[j]) * k_scale);
            vy[j] = pack_fp16(low_float(y[j]) * v_scale, high_float(y[j]) * v_scale);
        }
        ((uint4*)to.k)[i] = make_uint4(kx[0], kx[1], kx[2], kx[3]);
        ((uint4*)to.v)[i] = make_uint4(vy[0], vy[1], vy[2], vy[3]);
    }
    float factor = scale * LOG2E, shift = rintf(fmaxf(bound - LARGEST, 0.f) * 1024.f) / 1024.f;
#pragma unroll 2
    for (int i = threadIdx.x; i < to.queries; i += PREPARE_THREADS) {
        u32 x[4] = {}, y[4] = {};
        float weight = 0.f, minus = 0.f;
        if (i < sq) {
            load_head(x, q, q_row, i);
            load_head(y, do_, do_row, i);
            weight = delta[rows + i], minus = delta[i];
        }
        float mean = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) mean = fmaf(low_float(x[j]), s.mean[2 * j], fmaf(high_float(x[j]), s.mean[2 * j + 1], mean));
        // To a multiple of 2^-10, which is what the sums with 2^13 resolve.
        mean = rintf(mean * factor * 1024.f) / 1024.f + shift;
        weight = exp2_approx(weight + mean) * g_scale;
        u32 qx[4], gy[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            qx[j] = pack_fp16(low_float(x[j]) * (factor / k_scale), high_float(x[j]) * (factor / k_scale));
            gy[j] = pack_fp16(low_float(y[j]) * weight, high_float(y[j]) * weight);
        }
        ((uint4*)to.q)[i] = make_uint4(qx[0], qx[1], qx[2], qx[3]);
        ((uint4*)to.g)[i] = make_uint4(gy[0], gy[1], gy[2], gy[3]);
        float* start = (float*)(to.starts + i / 2) + (i & 1);
        int kind = start_kind(BWD_MUFU, i / 8 % 8);
        start[0] = start_value(BWD_MUFU, kind, 0) - mean;
        start[2] = start_value(BWD_MUFU, kind, 1) - mean;
        half_t less = (half_t)pack_fp16(minus * weight * v_scale, 0.f);
        to.minus[i / 2 * 4 + i % 2] = to.minus[i / 2 * 4 + 2 + i % 2] = less;
    }
#endif
}

#ifdef ELEM_BF16

template <int ROWS, int THREADS> __device__ __forceinline__ void copy_rows(u32 to, const void* from) {
#pragma unroll
    for (int i = 0; i < ROWS; i += THREADS)
        if (ROWS % THREADS == 0 || i + threadIdx.x < ROWS)
            copy_async<16>(to + (i + threadIdx.x) * 16, (const char*)from + (i + threadIdx.x) * 16ll, true);
}

// A 16x8 operand from rows of 8 fp16.
__device__ __forceinline__ void load_operand(u32 (&a)[2], const half_t* from, int row0, int rows, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + r * 8 + (lane >> 2);
        a[r] = row < rows ? *(const u32*)(from + row * 8ll + (lane & 3) * 2) : 0u;
    }
}

// p from the exponents of tiles `tile` and `tile` + 1 of 8.
template <bool CLAMP> __device__ __forceinline__ void exponentials(u32 (&p)[4], const float (&s)[2][4], int tile, u32 mantissa) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = s[n][2 * r], y = s[n][2 * r + 1];
            p[2 * n + r] = is_special(BWD_MUFU, tile + n, r) ? pack_fp16(exp2_approx(x), exp2_approx(y)) : exp2_pair<CLAMP>(x, y, mantissa);
        }
}

// ds = p (dp - delta)
__device__ __forceinline__ void multiply_gradient(u32 (&ds)[4], const u32 (&p)[4], const u32 (&dp)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) ds[i] = multiply_pairs(p[i], dp[i]);
}

// dk and dv of KV_MT x 16 keys, over all queries. Stages of shared memory hold q, do, starts and minus.
template <bool CLAMP>
__device__ __forceinline__ void fast_backward_kv(float (&dka)[KV_MT][1][4], float (&dva)[KV_MT][1][4], const Scratch& from, half_t* shared,
                                                 int row0, int sq, int sk, int lane) {
    constexpr int THREADS = 32 * KV_WARPS, STAGE = 48 * KV_QUERIES;
    u32 base = shared_address(shared);
    auto load = [&](int tile) {
        u32 to = base + (tile & 1) * STAGE;
        long long at = (long long)tile * KV_QUERIES;
        copy_rows<KV_QUERIES, THREADS>(to, from.q + at * 8);
        copy_rows<KV_QUERIES, THREADS>(to + 16 * KV_QUERIES, from.g + at * 8);
        copy_rows<KV_QUERIES / 2, THREADS>(to + 32 * KV_QUERIES, from.starts + at / 2);
        copy_rows<KV_QUERIES / 4, THREADS>(to + 40 * KV_QUERIES, from.minus + 2 * at);
    };
    int tiles = (sq + KV_QUERIES - 1) / KV_QUERIES;
    load(0);
    commit_copies();
    u32 mantissa = __float_as_uint(from.header[4]), ka[KV_MT][2], va[KV_MT][2];
#pragma unroll
    for (int m = 0; m < KV_MT; m++) {
        load_operand(ka[m], from.k, row0 + m * 16, from.keys, lane);
        load_operand(va[m], from.v, row0 + m * 16, from.keys, lane);
    }
    const char* starts_at = (const char*)shared + 32 * KV_QUERIES + (lane & 3) * 16;
    const char* minus_at = (const char*)shared + 40 * KV_QUERIES + (lane & 3) * 8;
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        u32 stage = (tile & 1) * STAGE;
#pragma unroll 1
        for (int n0 = 0; n0 < KV_QUERIES; n0 += 64) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 at = base + stage + (n0 + half * 32 + lane) * 16, qb[4], gb[4], qt[4], gt[4];
                ldmatrix(qb, at);
                ldmatrix(gb, at + 16 * KV_QUERIES);
                ldmatrix_transposed(qt, at);
                ldmatrix_transposed(gt, at + 16 * KV_QUERIES);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float start[2][4];
                    uint2 minus[2];
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        const char* pair = starts_at + stage + (n0 / 2 + half * 16 + c * 8 + n * 4) * 16;
                        float4 x = *(const float4*)pair;
                        start[n][0] = x.x, start[n][1] = x.y, start[n][2] = x.z, start[n][3] = x.w;
                        minus[n] = *(const uint2*)(minus_at + stage + (n0 + half * 32 + c * 16 + n * 8) * 4);
                    }
#pragma unroll
                    for (int m = 0; m < KV_MT; m++) {
                        float s[2][4];
                        u32 dp[4];
#pragma unroll
                        for (int n = 0; n < 2; n++) {
                            mma8_fp16(s[n], ka[m][0], ka[m][1], qb[2 * c + n], start[n]);
                            mma8_pairs(dp[2 * n], dp[2 * n + 1], va[m][0], va[m][1], gb[2 * c + n], minus[n].x, minus[n].y);
                        }
                        u32 p[4], ds[4];
                        exponentials<CLAMP>(p, s, half * 4 + c * 2, mantissa);
                        multiply_gradient(ds, p, dp);
                        mma16_fp16(dva[m][0], p, gt[2 * c], gt[2 * c + 1], dva[m][0]);
                        mma16_fp16(dka[m][0], ds, qt[2 * c], qt[2 * c + 1], dka[m][0]);
                    }
                }
            }
        }
        __syncthreads();
    }
}

// dq of DQ_MT x 16 queries, over all keys. Stages of shared memory hold k and v.
template <bool CLAMP>
__device__ __forceinline__ void fast_backward_q(float (&acc)[DQ_MT][1][4], const Scratch& from, half_t* shared, int row0, int sq, int sk,
                                                int lane) {
    constexpr int THREADS = 32 * DQ_WARPS, STAGE = 32 * DQ_KEYS;
    u32 base = shared_address(shared);
    auto load = [&](int tile) {
        u32 to = base + (tile & 1) * STAGE;
        long long at = (long long)tile * DQ_KEYS;
        copy_rows<DQ_KEYS, THREADS>(to, from.k + at * 8);
        copy_rows<DQ_KEYS, THREADS>(to + 16 * DQ_KEYS, from.v + at * 8);
    };
    int tiles = (sk + DQ_KEYS - 1) / DQ_KEYS, g = lane >> 2, t = lane & 3;
    load(0);
    commit_copies();
    u32 mantissa = __float_as_uint(from.header[4]), qa[DQ_MT][2], ga[DQ_MT][2];
    float plain[DQ_MT][4], mixed[DQ_MT][4];
    u32 minus[DQ_MT][2];
#pragma unroll
    for (int m = 0; m < DQ_MT; m++) {
        load_operand(qa[m], from.q, row0 + m * 16, from.queries, lane);
        load_operand(ga[m], from.g, row0 + m * 16, from.queries, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row0 + m * 16 + (i >> 1) * 8 + g;
            row = row < from.queries ? row : 0;
            float mean = start_value(BWD_MUFU, start_kind(BWD_MUFU, row / 8 % 8), 0) - ((const float*)(from.starts + row / 2))[row & 1];
            // Through memory, so that the compiler keeps every one of these in its register.
            plain[m][i] = from.header[8 + i] - mean;
            mixed[m][i] = from.header[12 + i] - mean;
            if (i % 2 == 0) minus[m][i / 2] = from.minus[row / 2 * 4 + row % 2] * 0x10001u;
        }
    }
    auto add_keys = [&](auto last, u32 at, int left) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 kb[4], vb[4], kt[4];
            ldmatrix(kb, at + half * 512);
            ldmatrix(vb, at + half * 512 + 16 * DQ_KEYS);
            ldmatrix_transposed(kt, at + half * 512);
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int m = 0; m < DQ_MT; m++) {
                    float s[2][4];
                    u32 dp[4];
                    int first = half * 4 + c * 2;
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        mma8_fp16(s[n], qa[m][0], qa[m][1], kb[2 * c + n], start_kind(BWD_MUFU, first + n) ? mixed[m] : plain[m]);
                        mma8_pairs(dp[2 * n], dp[2 * n + 1], ga[m][0], ga[m][1], vb[2 * c + n], minus[m][0], minus[m][1]);
                    }
                    u32 p[4], ds[4];
                    exponentials<CLAMP>(p, s, first, mantissa);
                    multiply_gradient(ds, p, dp);
                    if constexpr (last.value) {
                        // Keys past the end: what stands for 2^s there need not be finite.
#pragma unroll
                        for (int n = 0; n < 2; n++) {
                            int key = (first + n) * 8 + t * 2;
                            u32 keep = (key < left ? 0xffffu : 0u) | (key + 1 < left ? 0xffff0000u : 0u);
                            ds[2 * n] &= keep;
                            ds[2 * n + 1] &= keep;
                        }
                    }
                    mma16_fp16(acc[m][0], ds, kt[2 * c], kt[2 * c + 1], acc[m][0]);
                }
        }
    };
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        int left = sk - tile * DQ_KEYS;
        u32 at = base + (tile & 1) * STAGE + lane * 16;
        if (left >= DQ_KEYS) {
#pragma unroll 1
            for (int n0 = 0; n0 < DQ_KEYS; n0 += 64) add_keys(Flag<false>(), at + n0 * 16, left - n0);
        } else {
#pragma unroll 1
            for (int n0 = 0; n0 < left; n0 += 64) add_keys(Flag<true>(), at + n0 * 16, left - n0);
        }
        __syncthreads();
    }
}

#endif
#endif

constexpr int KV_THREADS = 32 * KV_WARPS;

// Keys are rows and queries columns: p^T and ds^T come out as A operands of dv = p^T do and dk = ds^T q.
extern "C" __global__ void __launch_bounds__(KV_THREADS, KV_BLOCKS) attention_backward_kv(
    const half_t* __restrict__ q, const half_t* __restrict__ k, const half_t* __restrict__ v, const half_t* __restrict__ do_,
    const float* __restrict__ delta, half_t* __restrict__ dk, half_t* __restrict__ dv, void* __restrict__ work, int heads, int sq, int sk,
    int q_row, int k_row, int v_row, int do_row, int dk_row, int dv_row, float scale, long long rows) {
    extern __shared__ __align__(128) half_t shared[];
    constexpr int TILE = KV_QUERIES * PITCH;
    constexpr int STAGE = 4 * TILE + 16 * KV_QUERIES; // bytes: q, do, then (x0, x1, x0, x1) for pairs of -lse and of -delta
    constexpr int BLOCK = 16 * KV_WARPS * KV_MT;
    int blocks = (sk + BLOCK - 1) / BLOCK;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK;
    long long b = bh / heads;
    int h = bh % heads;
    q += b * sq * q_row + h * D;
    do_ += b * sq * do_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    dk += b * sk * dk_row + h * D;
    dv += b * sk * dv_row + h * D;
    delta += (long long)bh * sq;
    const float* exponents = delta + rows;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, t = lane & 3;
    int row0 = first + warp * 16 * KV_MT;
    float factor = scale * LOG2E;
    float dka[KV_MT][D_TILES][4], dva[KV_MT][D_TILES][4];
    clear(dka);
    clear(dva);
#if HEAD_DIM == 8 && defined(ELEM_BF16)
    Scratch scratch(work, bh, sq, sk);
    if (scratch.header[0] != 0.f) {
        if (scratch.header[0] == 2.f) fast_backward_kv<false>(dka, dva, scratch, shared, row0, sq, sk, lane);
        else fast_backward_kv<true>(dka, dva, scratch, shared, row0, sq, sk, lane);
        float k_scale = scratch.header[1], v_scale = scratch.header[2], g_scale = scratch.header[3];
        store_rows<KV_MT>(dk, dk_row, row0, sk, dka, k_scale / LOG2E / v_scale / g_scale, lane);
        store_rows<KV_MT>(dv, dv_row, row0, sk, dva, 1.f / g_scale, lane);
        return;
    }
#endif

    Loader<KV_QUERIES, KV_THREADS> queries(q, q_row), grads(do_, do_row);
    auto load = [&](int tile) {
        half_t* to = shared + (tile & 1) * (STAGE / 2);
        int at = tile * KV_QUERIES;
        queries.load(to, sq - at);
        grads.load(to + TILE, sq - at);
        // Queries past the end get zeros everywhere, and so do nothing.
#pragma unroll
        for (int i = 0; i < KV_QUERIES; i += KV_THREADS) {
            int query = i + threadIdx.x;
            if (KV_QUERIES % KV_THREADS != 0 && query >= KV_QUERIES) break;
            u32 pair = shared_address(to + 2 * TILE) + (query >> 1) * 16 + (query & 1) * 4;
            bool valid = at + query < sq;
            copy_async<4>(pair, exponents + at + query, valid);
            copy_async<4>(pair + 8, exponents + at + query, valid);
            copy_async<4>(pair + 8 * KV_QUERIES, delta + at + query, valid);
            copy_async<4>(pair + 8 * KV_QUERIES + 8, delta + at + query, valid);
        }
    };
    int tiles = (sq + KV_QUERIES - 1) / KV_QUERIES;
    load(0);
    commit_copies();

    u32 ka[KV_MT][K_STEPS][4], va[KV_MT][K_STEPS][4];
#pragma unroll
    for (int m = 0; m < KV_MT; m++) {
        load_rows(ka[m], k, k_row, row0 + m * 16, sk, lane);
        load_rows(va[m], v, v_row, row0 + m * 16, sk, lane);
        if constexpr (SPLIT) split_rows(ka[m][0], factor);
    }
    u32 base = shared_address(shared), by_rows = base + 2 * rows_offset(lane), by_columns = base + 2 * columns_offset(lane);
    const char* pairs_at = (const char*)(shared + 2 * TILE) + t * 16;

    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        u32 stage = (tile & 1) * STAGE;
#pragma unroll 1
        for (int c = 0; c < KV_QUERIES; c += CHUNK) {
            float s[KV_MT][N_TILES][4], dp[KV_MT][N_TILES][4];
            float4 exponent[N_TILES];
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const char* at = pairs_at + stage + (c / 2 + n * 4) * 16;
                exponent[n] = *(const float4*)at;
                float4 minus = *(const float4*)(at + 8 * KV_QUERIES);
#pragma unroll
                for (int m = 0; m < KV_MT; m++) {
                    s[m][n][0] = SPLIT ? exponent[n].x : 0.f;
                    s[m][n][1] = SPLIT ? exponent[n].y : 0.f;
                    s[m][n][2] = SPLIT ? exponent[n].z : 0.f;
                    s[m][n][3] = SPLIT ? exponent[n].w : 0.f;
                    dp[m][n][0] = minus.x, dp[m][n][1] = minus.y, dp[m][n][2] = minus.z, dp[m][n][3] = minus.w;
                }
            }
            multiply_rows<KV_MT, true>(s, ka, by_rows + stage + 2 * c * PITCH);
            multiply_rows<KV_MT, false>(dp, va, by_rows + stage + 2 * TILE + 2 * c * PITCH);
            u32 p[KV_MT][STEPS_16][4], ds[KV_MT][STEPS_16][4];
#pragma unroll
            for (int m = 0; m < KV_MT; m++)
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
                    float e[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float minus = i & 1 ? exponent[n].y : exponent[n].x;
                        e[i] = exp2_approx(SPLIT ? s[m][n][i] : fmaf(s[m][n][i], factor, minus));
                    }
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        p[m][n / 2][n % 2 * 2 + r] = pack(e[2 * r], e[2 * r + 1]);
                        ds[m][n / 2][n % 2 * 2 + r] = pack(e[2 * r] * dp[m][n][2 * r], e[2 * r + 1] * dp[m][n][2 * r + 1]);
                    }
                }
            multiply_columns<KV_MT>(dva, p, by_columns + stage + 2 * TILE + 2 * c * PITCH);
            multiply_columns<KV_MT>(dka, ds, by_columns + stage + 2 * c * PITCH);
        }
        __syncthreads();
    }
    store_rows<KV_MT>(dk, dk_row, row0, sk, dka, scale, lane);
    store_rows<KV_MT>(dv, dv_row, row0, sk, dva, 1.f, lane);
}

constexpr int DQ_THREADS = 32 * DQ_WARPS;

// Queries are rows and keys columns: ds comes out as the A operand of dq = ds k.
extern "C" __global__ void __launch_bounds__(DQ_THREADS, DQ_BLOCKS) attention_backward_q(
    const half_t* __restrict__ q, const half_t* __restrict__ k, const half_t* __restrict__ v, const half_t* __restrict__ do_,
    const float* __restrict__ delta, half_t* __restrict__ dq, void* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row,
    int v_row, int do_row, int dq_row, float scale, long long rows) {
    extern __shared__ __align__(128) half_t shared[];
    constexpr int TILE = DQ_KEYS * PITCH;
    constexpr int BLOCK = 16 * DQ_WARPS * DQ_MT;
    int blocks = (sq + BLOCK - 1) / BLOCK;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK;
    long long b = bh / heads;
    int h = bh % heads;
    q += b * sq * q_row + h * D;
    do_ += b * sq * do_row + h * D;
    dq += b * sq * dq_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    delta += (long long)bh * sq;
    const float* exponents = delta + rows;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int row0 = first + warp * 16 * DQ_MT;
    float factor = scale * LOG2E;
    float acc[DQ_MT][D_TILES][4];
    clear(acc);
#if HEAD_DIM == 8 && defined(ELEM_BF16)
    Scratch scratch(work, bh, sq, sk);
    if (scratch.header[0] != 0.f) {
        if (scratch.header[0] == 2.f) fast_backward_q<false>(acc, scratch, shared, row0, sq, sk, lane);
        else fast_backward_q<true>(acc, scratch, shared, row0, sq, sk, lane);
        float k_scale = scratch.header[1], v_scale = scratch.header[2], g_scale = scratch.header[3];
        store_rows<DQ_MT>(dq, dq_row, row0, sq, acc, scale / k_scale / v_scale / g_scale, lane);
        return;
    }
#endif

    Loader<DQ_KEYS, DQ_THREADS> keys(k, k_row), values(v, v_row);
    auto load = [&](int tile) {
        half_t* to = shared + (tile & 1) * 2 * TILE;
        keys.load(to, sk - tile * DQ_KEYS);
        values.load(to + TILE, sk - tile * DQ_KEYS);
    };
    int tiles = (sk + DQ_KEYS - 1) / DQ_KEYS;
    load(0);
    commit_copies();

    u32 qa[DQ_MT][K_STEPS][4], ga[DQ_MT][K_STEPS][4];
    float exponent[DQ_MT][2], minus[DQ_MT][2];
#pragma unroll
    for (int m = 0; m < DQ_MT; m++) {
        load_rows(qa[m], q, q_row, row0 + m * 16, sq, lane);
        load_rows(ga[m], do_, do_row, row0 + m * 16, sq, lane);
        if constexpr (SPLIT) split_rows(qa[m][0], factor);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + m * 16 + r * 8 + g;
            exponent[m][r] = row < sq ? exponents[row] : 0.f;
            minus[m][r] = row < sq ? delta[row] : 0.f;
        }
    }
    u32 base = shared_address(shared), by_rows = base + 2 * rows_offset(lane), by_columns = base + 2 * columns_offset(lane);

    // CHUNK keys from byte `at` of the shared memory; of the last ones only `left` are real.
    auto add_chunk = [&](auto last, u32 at, int left) {
        float s[DQ_MT][N_TILES][4], dp[DQ_MT][N_TILES][4];
#pragma unroll
        for (int m = 0; m < DQ_MT; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[m][n][i] = SPLIT ? exponent[m][i >> 1] : 0.f;
                    dp[m][n][i] = minus[m][i >> 1];
                }
        multiply_rows<DQ_MT, true>(s, qa, by_rows + at);
        multiply_rows<DQ_MT, false>(dp, ga, by_rows + at + 2 * TILE);
        u32 ds[DQ_MT][STEPS_16][4];
#pragma unroll
        for (int m = 0; m < DQ_MT; m++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                float e[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    e[i] = exp2_approx(SPLIT ? s[m][n][i] : fmaf(s[m][n][i], factor, exponent[m][i >> 1]));
#pragma unroll
                for (int r = 0; r < 2; r++)
                    ds[m][n / 2][n % 2 * 2 + r] = pack(e[2 * r] * dp[m][n][2 * r], e[2 * r + 1] * dp[m][n][2 * r + 1]);
            }
        if constexpr (last.value) {
            // Keys past the end: 2^-lse may be infinite, and infinity times a zero key is not zero.
#pragma unroll
            for (int m = 0; m < DQ_MT; m++)
#pragma unroll
                for (int n = 0; n < N_TILES; n++) {
                    int key = n * 8 + t * 2;
                    u32 keep = (key < left ? 0xffffu : 0u) | (key + 1 < left ? 0xffff0000u : 0u);
                    ds[m][n / 2][n % 2 * 2] &= keep;
                    ds[m][n / 2][n % 2 * 2 + 1] &= keep;
                }
        }
        multiply_columns<DQ_MT>(acc, ds, by_columns + at);
    };

    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        u32 stage = (tile & 1) * 4 * TILE;
        int left = sk - tile * DQ_KEYS;
        if (left >= DQ_KEYS) {
#pragma unroll(HEAD_DIM >= 64 ? 2 : 1)
            for (int c = 0; c < DQ_KEYS; c += CHUNK) add_chunk(Flag<false>(), stage + 2 * c * PITCH, left - c);
        } else {
#pragma unroll 1
            for (int c = 0; c < left; c += CHUNK) add_chunk(Flag<true>(), stage + 2 * c * PITCH, left - c);
        }
        __syncthreads();
    }
    store_rows<DQ_MT>(dq, dq_row, row0, sq, acc, scale, lane);
}
