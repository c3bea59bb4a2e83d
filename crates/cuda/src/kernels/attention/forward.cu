// Attention forward, bf16 and fp16: o = softmax(scale q kT) v and lse = log of the sum of exponentials.
//
// attention_forward(q, k, v, o, lse, work, heads, sq, sk, q_row, k_row, v_row, o_row, scale)
//   grid  ceil(sq / (16 FWD_WARPS FWD_MT)) * B * H, block 32 FWD_WARPS, dynamic shared memory 8 FWD_KEYS PITCH bytes
// attention_prepare(k, v, work, heads, sk, k_row, v_row), only for HEAD_DIM 8 and before attention_forward
//   grid  B * H, block 256; work: B H (round_up(sk, 256) 32 + 256) bytes
// Options besides the prelude's: -DFWD_WARPS, -DFWD_MT (16-row tiles per warp), -DFWD_KEYS (keys per stage, a multiple
// of 64, and for HEAD_DIM 8 a divisor of 256); and, to be left to themselves, -DFWD_BLOCKS and -DFWD_MUFU.

constexpr int THREADS = 32 * FWD_WARPS;
constexpr int BLOCK_Q = 16 * FWD_WARPS * FWD_MT;
constexpr int NEG_INF = 0xff800000;
#ifndef FWD_BLOCKS
// Blocks per multiprocessor that the compiler leaves registers for.
#define FWD_BLOCKS (HEAD_DIM == 8 && FWD_WARPS <= 10 ? 20 / FWD_WARPS \
                  : HEAD_DIM == 16 && FWD_WARPS <= 8 ? 16 / FWD_WARPS : HEAD_DIM == 32 && FWD_WARPS <= 6 ? 12 / FWD_WARPS : 1)
#endif

#if HEAD_DIM > 8

// A warp works on SUB keys at a time; the products of the next SUB are under way while the exponentials of these are computed.
constexpr int SUB = 32, N_TILES = SUB / 8, SUBS = FWD_KEYS / SUB;
static_assert(SUBS % 2 == 0, "FWD_KEYS is a multiple of 64");

// Exponentials relative to the largest of the first keys start at 2^-HEADROOM; a sum past TOO_LARGE (of one lane) may hold
// one that the element type does not.
#ifdef ELEM_BF16
constexpr float HEADROOM = 0.f, TOO_LARGE = 1e15f; // and leaves room for large v
#else
constexpr float HEADROOM = 4.f, TOO_LARGE = 60000.f;
#endif

__device__ __forceinline__ void multiply_keys(float (&s)[FWD_MT][N_TILES][4], const u32 (&qa)[FWD_MT][K_STEPS][4], u32 at) {
#pragma unroll
    for (int n = 0; n < N_TILES; n += 2) {
#pragma unroll
        for (int m = 0; m < FWD_MT; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[m][n][i] = s[m][n + 1][i] = 0.f;
#pragma unroll
        for (int ks = 0; ks < K_STEPS; ks++) {
            u32 kb[4];
            ldmatrix(kb, at + 2 * (n * 8 * PITCH + ks * 16));
#pragma unroll
            for (int m = 0; m < FWD_MT; m++) {
                mma16(s[m][n], qa[m][ks], kb[0], kb[1], s[m][n]);
                mma16(s[m][n + 1], qa[m][ks], kb[2], kb[3], s[m][n + 1]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, FWD_BLOCKS) attention_forward(
    const half_t* __restrict__ q, const half_t* __restrict__ k, const half_t* __restrict__ v, half_t* __restrict__ o,
    float* __restrict__ lse, const void* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row, int v_row,
    int o_row, float scale) {
    extern __shared__ __align__(128) half_t shared[];
    constexpr int TILE = FWD_KEYS * PITCH;
    int blocks = (sq + BLOCK_Q - 1) / BLOCK_Q;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK_Q;
    long long b = bh / heads;
    int h = bh % heads;
    q += b * sq * q_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    o += b * sq * o_row + h * D;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int row0 = first + warp * 16 * FWD_MT;

    int tiles = (sk + FWD_KEYS - 1) / FWD_KEYS;
    u32 qa[FWD_MT][K_STEPS][4];
    float acc[FWD_MT][D_TILES][4], top[FWD_MT][2], sum[FWD_MT][2];
#pragma unroll
    for (int m = 0; m < FWD_MT; m++) {
        load_rows(qa[m], q, q_row, row0 + m * 16, sq, lane);
        // The maximum is taken before scaling: a negative scale turns q round instead.
        if (scale < 0.f)
#pragma unroll
            for (int ks = 0; ks < K_STEPS; ks++)
#pragma unroll
                for (int i = 0; i < 4; i++) qa[m][ks][i] ^= 0x80008000u;
    }
    float factor = fmaxf(fabsf(scale) * LOG2E, 1e-30f); // not 0: masked logits are -inf
    u32 k_at = shared_address(shared) + 2 * rows_offset(lane), v_at = shared_address(shared + TILE) + 2 * columns_offset(lane);

    // All keys. ONLINE: with the running maximum; else the first SUB keys set the reference of the exponentials for good,
    // which is as exact unless a later logit overflows.
    auto attend = [&](auto online) {
        constexpr bool ONLINE = online.value;
        Loader<FWD_KEYS, THREADS> keys(k, k_row), values(v, v_row);
        auto load = [&](int tile) {
            half_t* to = shared + (tile & 1) * 2 * TILE;
            keys.load(to, sk - tile * FWD_KEYS);
            values.load(to + TILE, sk - tile * FWD_KEYS);
        };
        load(0);
        commit_copies();
        if (tiles > 1) load(1);
        commit_copies();
#pragma unroll
        for (int m = 0; m < FWD_MT; m++) {
#pragma unroll
            for (int d = 0; d < D_TILES; d++)
#pragma unroll
                for (int i = 0; i < 4; i++) acc[m][d][i] = 0.f;
#pragma unroll
            for (int r = 0; r < 2; r++) top[m][r] = __int_as_float(NEG_INF), sum[m][r] = 0.f;
        }
        auto mask = [&](float(&x)[FWD_MT][N_TILES][4], int left) {
#pragma unroll
            for (int m = 0; m < FWD_MT; m++)
#pragma unroll
                for (int n = 0; n < N_TILES; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (n * 8 + t * 2 + (i & 1) >= left) x[m][n][i] = __int_as_float(NEG_INF);
        };
        // The largest logits of SUB keys and of what came before; whether any is new.
        auto raise = [&](const float(&x)[FWD_MT][N_TILES][4], float(&best)[FWD_MT][2]) {
            bool rises = false;
#pragma unroll
            for (int m = 0; m < FWD_MT; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float y = fmaxf(x[m][0][2 * r], x[m][0][2 * r + 1]);
#pragma unroll
                    for (int n = 1; n < N_TILES; n++) y = fmaxf(y, fmaxf(x[m][n][2 * r], x[m][n][2 * r + 1]));
                    y = fmaxf(y, __shfl_xor_sync(~0u, y, 1));
                    y = fmaxf(y, __shfl_xor_sync(~0u, y, 2));
                    best[m][r] = fmaxf(top[m][r], y * factor);
                    rises |= best[m][r] > top[m][r];
                }
            return rises;
        };

        float s[2][FWD_MT][N_TILES][4];
        wait_copies<1>();
        __syncthreads();
        multiply_keys(s[0], qa, k_at);
        if (!ONLINE) {
            if (sk < SUB) mask(s[0], sk);
            float best[FWD_MT][2];
            raise(s[0], best);
#pragma unroll
            for (int m = 0; m < FWD_MT; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) top[m][r] = best[m][r] + HEADROOM;
        }
        for (int tile = 0; tile < tiles; tile++) {
            u32 stage = (tile & 1) * 4 * TILE;
#pragma unroll
            for (int sub = 0; sub < SUBS; sub++) {
                float(&now)[FWD_MT][N_TILES][4] = s[sub % 2];
                int left = sk - tile * FWD_KEYS - sub * SUB;
                if (left < SUB) mask(now, left);
                if (ONLINE) {
                    float best[FWD_MT][2];
                    if (__any_sync(~0u, raise(now, best))) {
#pragma unroll
                        for (int m = 0; m < FWD_MT; m++)
#pragma unroll
                            for (int r = 0; r < 2; r++) {
                                float shrink = exp2_approx(top[m][r] - best[m][r]);
                                top[m][r] = best[m][r];
                                sum[m][r] *= shrink;
#pragma unroll
                                for (int d = 0; d < D_TILES; d++) acc[m][d][2 * r] *= shrink, acc[m][d][2 * r + 1] *= shrink;
                            }
                    }
                }
                if (sub == SUBS - 1) {
                    // The next tile has arrived.
                    wait_copies<0>();
                    __syncthreads();
                }
                // After the last tile this multiplies what is left in shared memory, for nothing.
                multiply_keys(s[1 - sub % 2], qa, k_at + (sub < SUBS - 1 ? stage + 2 * (sub + 1) * SUB * PITCH : 4 * TILE - stage));
#pragma unroll
                for (int n = 0; n < N_TILES; n += 2) {
                    u32 p[FWD_MT][4];
#pragma unroll
                    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
#pragma unroll
                            for (int r = 0; r < 2; r++) {
                                float x = exp2_approx(fmaf(now[m][n + e][2 * r], factor, -top[m][r]));
                                float y = exp2_approx(fmaf(now[m][n + e][2 * r + 1], factor, -top[m][r]));
                                sum[m][r] += x + y;
                                p[m][2 * e + r] = pack(x, y);
                            }
#pragma unroll
                    for (int d = 0; d < D_TILES; d += 2) {
                        u32 vb[4];
                        ldmatrix_transposed(vb, v_at + stage + 2 * ((sub * SUB + n * 8) * PITCH + d * 8));
#pragma unroll
                        for (int m = 0; m < FWD_MT; m++) {
                            mma16(acc[m][d], p[m], vb[0], vb[1], acc[m][d]);
                            mma16(acc[m][d + 1], p[m], vb[2], vb[3], acc[m][d + 1]);
                        }
                    }
                }
            }
            __syncthreads();
            if (tile + 2 < tiles) load(tile + 2);
            commit_copies();
        }
        wait_copies<0>();
    };
    attend(Flag<false>());
    // Written so that a NaN counts as too large.
    bool fits = true;
#pragma unroll
    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) fits &= sum[m][r] < TOO_LARGE;
    if (__syncthreads_or(!fits)) attend(Flag<true>());
#pragma unroll
    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float total = sum[m][r];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            int row = row0 + m * 16 + r * 8 + g;
            float inverse = 1.f / total;
#pragma unroll
            for (int d = 0; d < D_TILES; d++)
                store_pair(o, o_row, row, sq, d * 8 + t * 2, acc[m][d][2 * r] * inverse, acc[m][d][2 * r + 1] * inverse);
            if (t == 0 && row < sq) lse[(long long)bh * sq + row] = (top[m][r] + log2_approx(total)) * LN2;
        }
}

#else

// Heads of 8 (see the prelude): attention_prepare writes k and v of each head as fp16, scaled by powers of two so that
// neither range nor precision is lost. Row sums come from a column of ones. Warps with a row of too large a bound run the
// usual online softmax.

#ifndef FWD_MUFU
#ifdef ELEM_BF16
#define FWD_MUFU 8
#else
#define FWD_MUFU 16
#endif
#endif

#ifdef ELEM_BF16
constexpr bool SPLIT_Q = false;
#else
constexpr bool SPLIT_Q = true; // fp16 outputs show the rounding of a scaled q
#endif
constexpr int MEAN_AT = 8, BASE_AT = 16, MIXED_AT = 20; // places in the header
// Halves before the keys of a head in `work`: largest |k - mean|, scale of k, scale of v; constants of the inner loop, which
// the compiler would set anew for each use if it knew them, at a tenth of the loop's instructions; the mean of k.
constexpr int HEADER = 128;

struct Constants {
    u32 mantissa, one[2];
    float base[FWD_MT][4], mixed[FWD_MT][4]; // what the matrix unit starts from
};

__device__ __forceinline__ long long work_stride(int sk) { return (long long)((sk + 255) / 256 * 256) * 16 + HEADER; }

extern "C" __global__ void __launch_bounds__(256) attention_prepare(const half_t* __restrict__ k, const half_t* __restrict__ v,
                                                                  half_t* __restrict__ work, int heads, int sk, int k_row, int v_row) {
    __shared__ float scratch[8][12];
    int bh = blockIdx.x, h = bh % heads;
    long long b = bh / heads;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    work += bh * work_stride(sk);
    KeyStatistics s = key_statistics<256>(k, v, k_row, v_row, sk, scratch);
    float k_scale = unit_scale(s.k_top), v_scale = unit_scale(s.v_top) * 16384.f;
    if (threadIdx.x == 0) {
        float* header = (float*)work;
        header[0] = s.k_top, header[1] = k_scale, header[2] = v_scale, header[6] = s.spread;
        header[3] = __uint_as_float(MANTISSA);
        header[4] = header[5] = __uint_as_float(ONE);
        for (int j = 0; j < 4; j++) header[BASE_AT + j] = start_value(FWD_MUFU, 0, j / 2), header[MIXED_AT + j] = start_value(FWD_MUFU, 1, j / 2);
        for (int j = 0; j < 8; j++) header[MEAN_AT + j] = s.mean[j];
    }
    uint4* to = (uint4*)(work + HEADER);
    int padded = (sk + 255) / 256 * 256;
#pragma unroll 2
    for (int i = threadIdx.x; i < padded; i += 256) {
        u32 x[4] = {}, y[4] = {};
        if (i < sk) {
            load_head(x, k, k_row, i);
            load_head(y, v, v_row, i);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[j] = pack_fp16(low_float(x[j]) * k_scale, high_float(x[j]) * k_scale);
            y[j] = pack_fp16(low_float(y[j]) * v_scale, high_float(y[j]) * v_scale);
        }
        to[i] = make_uint4(x[0], x[1], x[2], x[3]);
        to[padded + i] = make_uint4(y[0], y[1], y[2], y[3]);
    }
}

// Products of 16 rows of q with 16 keys, tiles `tile` and `tile` + 1 of 8.
__device__ __forceinline__ void multiply_keys(float (&s)[2][4], const u32 (&q)[4], u32 k0, u32 k1, int tile, const float (&base)[4],
                                              const float (&mixed)[4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float(&start)[4] = start_kind(FWD_MUFU, tile + n) ? mixed : base;
        if constexpr (SPLIT_Q) mma16_fp16(s[n], q, n ? k1 : k0, n ? k1 : k0, start);
        else mma8_fp16(s[n], q[0], q[1], n ? k1 : k0, start);
    }
}

// One key tile for rows that need no maximum. `left`: keys that are real, counted from the tile's start.
// The products of the next 16 keys are under way while the exponentials of these are computed.
template <bool MASKED, bool CLAMP>
__device__ __forceinline__ void fast_tile(float (&acc)[FWD_MT][4], float (&sum)[FWD_MT][4], const u32 (&qa)[FWD_MT][4], u32 k_at, u32 v_at,
                                          int left, int t, const Constants& constants) {
    u32 kb[2][4];
    float s[2][2][4];
    ldmatrix(kb[0], k_at);
    multiply_keys(s[0], qa[0], kb[0][0], kb[0][1], 0, constants.base[0], constants.mixed[0]);
#pragma unroll 1
    for (int n0 = 0; n0 < FWD_KEYS; n0 += 64) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 vb[4];
            ldmatrix_transposed(vb, v_at + (n0 + half * 32) * 16);
            // The last one reads past the keys, into the values or the other stage, for nothing.
            ldmatrix(kb[1 - half], k_at + (n0 + half * 32 + 32) * 16);
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int m = 0; m < FWD_MT; m++) {
                    constexpr int LAST = FWD_MT - 1;
                    int group = (half * 2 + c) * FWD_MT + m, now = group % 2;
                    int next_c = m < LAST ? c : 1 - c, next_half = m < LAST || c == 0 ? half : 1 - half;
                    int next_m = m < LAST ? m + 1 : 0;
                    multiply_keys(s[1 - now], qa[next_m], kb[next_half][2 * next_c], kb[next_half][2 * next_c + 1],
                                  next_half * 4 + next_c * 2, constants.base[next_m], constants.mixed[next_m]);
                    u32 p[4];
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        int tile = half * 4 + c * 2 + n;
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            float x = s[now][n][2 * r], y = s[now][n][2 * r + 1];
                            p[2 * n + r] = is_special(FWD_MUFU, tile, r) ? pack_fp16(exp2_approx(x), exp2_approx(y)) : exp2_pair<CLAMP>(x, y, constants.mantissa);
                        }
                        if (MASKED) {
                            int key = n0 + tile * 8 + t * 2;
                            u32 keep = (key < left ? 0xffffu : 0u) | (key + 1 < left ? 0xffff0000u : 0u);
                            p[2 * n] &= keep;
                            p[2 * n + 1] &= keep;
                        }
                    }
                    mma16_fp16(acc[m], p, vb[2 * c], vb[2 * c + 1], acc[m]);
                    mma16_fp16(sum[m], p, constants.one[0], constants.one[1], sum[m]);
                }
        }
    }
}

// One key tile with the online softmax; q as a sum of two fp16.
__device__ __forceinline__ void online_tile(float (&acc)[FWD_MT][4], float (&sum)[FWD_MT][4], float (&top)[FWD_MT][2],
                                            const u32 (&qa)[FWD_MT][4], u32 k_at, u32 v_at, int left, int t) {
    const float zero[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 1
    for (int n0 = 0; n0 < FWD_KEYS; n0 += 32) {
        if (n0 >= left) break;
        u32 kb[4], vb[4];
        ldmatrix(kb, k_at + n0 * 16);
        ldmatrix_transposed(vb, v_at + n0 * 16);
#pragma unroll
        for (int m = 0; m < FWD_MT; m++) {
            float s[4][4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                mma16_fp16(s[n], qa[m], kb[n], kb[n], zero);
                if (left < FWD_KEYS) {
                    int key = n0 + n * 8 + t * 2;
                    if (key >= left) s[n][0] = s[n][2] = __int_as_float(NEG_INF);
                    if (key + 1 >= left) s[n][1] = s[n][3] = __int_as_float(NEG_INF);
                }
            }
            u32 p[8];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float best = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
                for (int n = 1; n < 4; n++) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
                best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
                best = fmaxf(best, top[m][r]);
                float shrink = exp2_approx(top[m][r] - best);
                top[m][r] = best;
                acc[m][2 * r] *= shrink, acc[m][2 * r + 1] *= shrink;
                sum[m][2 * r] *= shrink, sum[m][2 * r + 1] *= shrink;
#pragma unroll
                for (int n = 0; n < 4; n++)
                    p[2 * n + r] = pack_fp16(exp2_approx(s[n][2 * r] - best), exp2_approx(s[n][2 * r + 1] - best));
            }
            u32 a0[4] = {p[0], p[1], p[2], p[3]}, a1[4] = {p[4], p[5], p[6], p[7]};
            mma16_fp16(acc[m], a0, vb[0], vb[1], acc[m]);
            mma16_fp16(sum[m], a0, ONE, ONE, sum[m]);
            mma16_fp16(acc[m], a1, vb[2], vb[3], acc[m]);
            mma16_fp16(sum[m], a1, ONE, ONE, sum[m]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, FWD_BLOCKS) attention_forward(
    const half_t* __restrict__ q, const half_t* __restrict__ k, const half_t* __restrict__ v, half_t* __restrict__ o,
    float* __restrict__ lse, const half_t* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row, int v_row,
    int o_row, float scale) {
    extern __shared__ __align__(128) half_t shared[];
    constexpr int TILE = FWD_KEYS * 8;
    int blocks = (sq + BLOCK_Q - 1) / BLOCK_Q;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK_Q;
    long long b = bh / heads;
    int h = bh % heads;
    q += b * sq * q_row + h * D;
    o += b * sq * o_row + h * D;
    work += bh * work_stride(sk);
    const half_t* keys = work + HEADER;
    const half_t* values = keys + (long long)((sk + 255) / 256 * 256) * 8;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int row0 = first + warp * 16 * FWD_MT;

    auto load = [&](int tile) {
        u32 to = shared_address(shared + (tile & 1) * 2 * TILE);
        for (int i = threadIdx.x; i < FWD_KEYS; i += THREADS) {
            copy_async<16>(to + i * 16, keys + (long long)(tile * FWD_KEYS + i) * 8, true);
            copy_async<16>(to + 2 * TILE + i * 16, values + (long long)(tile * FWD_KEYS + i) * 8, true);
        }
    };
    int tiles = (sk + FWD_KEYS - 1) / FWD_KEYS;
    load(0);
    commit_copies();

    const float* header = (const float*)work;
    float k_top = header[0], spread = header[6], factor = scale * LOG2E / header[1], v_scale = header[2];
    u32 qa[FWD_MT][4];
    float bound = 0.f;
#pragma unroll
    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pair = load_pair(q, q_row, row0 + m * 16 + r * 8 + g, sq, t * 2);
            float x = low_float(pair), y = high_float(pair);
            float square = x * x + y * y;
            square += __shfl_xor_sync(~0u, square, 1);
            square += __shfl_xor_sync(~0u, square, 2);
            bound = fmaxf(bound, square);
            x = fminf(fmaxf(x * factor, -65504.f), 65504.f);
            y = fminf(fmaxf(y * factor, -65504.f), 65504.f);
            u32 lead = pack_fp16(x, y);
            qa[m][r] = lead;
            qa[m][r + 2] = pack_fp16(x - fp16_low(lead), y - fp16_high(lead));
        }
    bound = sqrtf(bound) * fabsf(scale * LOG2E);
#pragma unroll
    for (int i = 4; i < 32; i <<= 1) bound = fmaxf(bound, __shfl_xor_sync(~0u, bound, i));
    bool rounded = bound * k_top <= ROUNDING_BOUND;
    bound *= spread;
    bool fast = __all_sync(~0u, bound <= FAST_BOUND && rounded), normal = __all_sync(~0u, bound <= NORMAL_BOUND); // not so for a NaN
    float shift = fast ? fmaxf(bound - LARGEST, 0.f) : 0.f;
    Constants constants = {__float_as_uint(header[3]), {__float_as_uint(header[4]), __float_as_uint(header[5])}, {}, {}};
    float acc[FWD_MT][4] = {}, sum[FWD_MT][4] = {}, top[FWD_MT][2];
#pragma unroll
    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            u32 pair = load_pair(q, q_row, row0 + m * 16 + r * 8 + g, sq, t * 2);
            float mean = low_float(pair) * header[MEAN_AT + t * 2] + high_float(pair) * header[MEAN_AT + t * 2 + 1];
            mean += __shfl_xor_sync(~0u, mean, 1);
            mean += __shfl_xor_sync(~0u, mean, 2);
            // To a multiple of 2^-10, which is what the sums with 2^13 resolve.
            mean = rintf(mean * scale * LOG2E * 1024.f) / 1024.f + rintf(shift * 1024.f) / 1024.f;
            top[m][r] = fast ? mean : __int_as_float(NEG_INF);
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                constants.base[m][i] = header[BASE_AT + i] - mean;
                constants.mixed[m][i] = header[MIXED_AT + i] - mean;
            }
        }

    u32 k_at = shared_address(shared) + lane * 16, v_at = k_at + 2 * TILE;
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) load(tile + 1);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        u32 stage = (tile & 1) * 4 * TILE;
        int left = sk - tile * FWD_KEYS;
        if (!fast) {
            online_tile(acc, sum, top, qa, k_at + stage, v_at + stage, left, t);
        } else if (left < FWD_KEYS) {
            fast_tile<true, true>(acc, sum, qa, k_at + stage, v_at + stage, left, t, constants);
        } else if (normal) {
            fast_tile<false, false>(acc, sum, qa, k_at + stage, v_at + stage, left, t, constants);
        } else {
            fast_tile<false, true>(acc, sum, qa, k_at + stage, v_at + stage, left, t, constants);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < FWD_MT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + m * 16 + r * 8 + g;
            float total = sum[m][2 * r], inverse = 1.f / total / v_scale;
            store_pair(o, o_row, row, sq, t * 2, acc[m][2 * r] * inverse, acc[m][2 * r + 1] * inverse);
            if (t == 0 && row < sq) lse[(long long)bh * sq + row] = (top[m][r] + log2_approx(total)) * LN2;
        }
}

#endif
