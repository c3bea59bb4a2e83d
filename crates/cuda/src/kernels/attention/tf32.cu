// Attention of float32 by matrix units that read TF32, forward and backward. Stands behind half.cu and delta.cu; the same
// kernels as single.cu has, with the same arguments.
//
// attention_forward: grid ceil(sq / OWN) * B * H, dynamic shared memory 2 OTHERS PITCH * 4 bytes
// attention_backward_kv, attention_backward_q: grid ceil(sk / OWN) * B * H and ceil(sq / OWN) * B * H, dynamic shared memory
//   (2 (OWN + OTHERS) PITCH + 2 OTHERS) * 4 bytes
// Blocks are of 128 threads. work is not used.
// Options: -DHEAD_DIM=8|16|32|64|128, -DD=<real head size>, -DVEC=4|2|1, -DTILE=64|32|16 (rows that a block goes through at a time).
//
// Matrix units cut float32 off behind TF32's bits: whatever goes into a product is rounded to the nearest first.
//
// Fragments of mma.sync, for lane L with g = L/4 and t = L%4:
//   accumulator 16x8: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
//   A 16x8: (g, t), (g+8, t), (g, t+4), (g+8, t+4);  B 8x8: (t, g), (t+4, g)
// An accumulator is an A operand if columns 2t and 2t+1 of it are called t and t+4: B then has its rows 2t and 2t+1 there.

constexpr int THREADS = 128, OWN = 64, OTHERS = TILE;
constexpr int PITCH = HEAD_DIM + 4; // shared row length: no bank conflicts, by rows and by columns
constexpr int D_TILES = HEAD_DIM / 8, TILES = OTHERS / 8;

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// To the nearest TF32.
__device__ __forceinline__ float rounded(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}

__device__ __forceinline__ void multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Rows of a head into [ROWS][PITCH], rounded; zeros past `valid_rows` and past D.
template <int ROWS> __device__ __forceinline__ void load_tile(float* to, const float* from, int row_stride, int valid_rows) {
    typedef typename Vector<VEC>::type vector;
    constexpr int CHUNKS = HEAD_DIM / VEC, COUNT = ROWS * CHUNKS, BATCH = 4;
    for (int first = threadIdx.x; first < COUNT; first += BATCH * THREADS) {
        vector x[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, r = i / CHUNKS, c = i % CHUNKS * VEC;
            x[b] = {};
            if (i < COUNT && r < valid_rows && c < D) x[b] = *(const vector*)(from + (long long)r * row_stride + c);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * THREADS, r = i / CHUNKS, c = i % CHUNKS * VEC;
#pragma unroll
            for (int e = 0; e < VEC; e++) ((float*)&x[b])[e] = rounded(((float*)&x[b])[e]);
            if (i < COUNT) *(vector*)(to + r * PITCH + c) = x[b];
        }
    }
}

// The A operand of 8 columns from `column` of a warp's 16 rows.
__device__ __forceinline__ void own_rows(float (&a)[4], const float* tile, int column, int lane) {
    const float* at = tile + (lane >> 2) * PITCH + column + (lane & 3);
    a[0] = at[0], a[1] = at[8 * PITCH], a[2] = at[4], a[3] = at[8 * PITCH + 4];
}

// s = a warp's 16 rows times the rows of `others`.
__device__ __forceinline__ void multiply_rows(float (&s)[TILES][4], const float* own, const float* others, int lane) {
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.f;
    others += (lane >> 2) * PITCH + (lane & 3);
#pragma unroll
    for (int d = 0; d < D_TILES; d++) {
        float a[4];
        own_rows(a, own, d * 8, lane);
#pragma unroll
        for (int n = 0; n < TILES; n++) multiply(s[n], a, others[n * 8 * PITCH + d * 8], others[n * 8 * PITCH + d * 8 + 4]);
    }
}

// acc += p times `others`; p is as products leave it.
__device__ __forceinline__ void multiply_columns(float (&acc)[D_TILES][4], const float (&p)[TILES][4], const float* others, int lane) {
    others += (lane & 3) * 2 * PITCH + (lane >> 2);
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        float a[4] = {p[n][0], p[n][2], p[n][1], p[n][3]};
#pragma unroll
        for (int d = 0; d < D_TILES; d++) multiply(acc[d], a, others[n * 8 * PITCH + d * 8], others[(n * 8 + 1) * PITCH + d * 8]);
    }
}

__device__ __forceinline__ void clear(float (&acc)[D_TILES][4]) {
#pragma unroll
    for (int d = 0; d < D_TILES; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[d][i] = 0.f;
}

// One of a lane's two rows.
__device__ __forceinline__ void store_row(float* to, const float (&acc)[D_TILES][4], int which, float factor, int t) {
#pragma unroll
    for (int d = 0; d < D_TILES; d++) {
        int c = d * 8 + t * 2;
        float2 x = {acc[d][2 * which] * factor, acc[d][2 * which + 1] * factor};
        if constexpr (VEC > 1) {
            if (c < D) *(float2*)(to + c) = x;
        } else {
            if (c < D) to[c] = x.x;
            if (c + 1 < D) to[c + 1] = x.y;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const float* __restrict__ q, const float* __restrict__ k,
                                                                      const float* __restrict__ v, float* __restrict__ o,
                                                                      float* __restrict__ lse, const void* __restrict__ work, int heads,
                                                                      int sq, int sk, int q_row, int k_row, int v_row, int o_row, float scale) {
    extern __shared__ __align__(16) float shared[];
    float *ks = shared, *vs = ks + OTHERS * PITCH;
    int blocks = (sq + OWN - 1) / OWN;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * OWN, h = bh % heads;
    long long b = bh / heads;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    q += b * sq * q_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    o += b * sq * o_row + h * D;
    int row0 = first + warp * 16;
    float qa[D_TILES][4], acc[D_TILES][4], top[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
    clear(acc);
#pragma unroll
    for (int d = 0; d < D_TILES; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row0 + g + (i & 1) * 8, c = d * 8 + t + (i >> 1) * 4;
            qa[d][i] = row < sq && c < D ? rounded(q[(long long)row * q_row + c]) : 0.f;
        }
    // The maximum is taken before scaling: a negative scale turns q round instead.
    if (scale < 0.f)
#pragma unroll
        for (int d = 0; d < D_TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++) qa[d][i] = -qa[d][i];
    float factor = fmaxf(fabsf(scale) * LOG2E, 1e-30f); // not 0: masked logits are -inf

    for (int at = 0; at < sk; at += OTHERS) {
        __syncthreads();
        load_tile<OTHERS>(ks, k + (long long)at * k_row, k_row, sk - at);
        load_tile<OTHERS>(vs, v + (long long)at * v_row, v_row, sk - at);
        __syncthreads();
        float s[TILES][4];
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] = 0.f;
        const float* keys = ks + g * PITCH + t;
#pragma unroll
        for (int d = 0; d < D_TILES; d++)
#pragma unroll
            for (int n = 0; n < TILES; n++) multiply(s[n], qa[d], keys[n * 8 * PITCH + d * 8], keys[n * 8 * PITCH + d * 8 + 4]);
        if (sk - at < OTHERS)
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (at + n * 8 + t * 2 + (i & 1) >= sk) s[n][i] = minus_infinity();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = minus_infinity();
#pragma unroll
            for (int n = 0; n < TILES; n++) best = fmaxf(best, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
            best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
            best = fmaxf(best * factor, top[r]);
            float shrink = exp2_approx(top[r] - best);
            top[r] = best;
            sum[r] *= shrink;
#pragma unroll
            for (int d = 0; d < D_TILES; d++) acc[d][2 * r] *= shrink, acc[d][2 * r + 1] *= shrink;
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++) {
                    // What is summed is what is multiplied.
                    s[n][i] = rounded(exp2_approx(fmaf(s[n][i], factor, -best)));
                    sum[r] += s[n][i];
                }
        }
        multiply_columns(acc, s, vs, lane);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = sum[r];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        int row = row0 + r * 8 + g;
        if (row >= sq) continue;
        store_row(o + (long long)row * o_row, acc, r, 1.f / total, t);
        if (t == 0) lse[(long long)bh * sq + row] = (top[r] + log2f(total)) * LN2;
    }
}

// Both gradients: `a` and `c` are the block's own rows (k and v, or q and do), `x` and `y` the rows it goes through
// (q and do, or k and v). KEYS: own rows are keys.
template <bool KEYS>
__device__ __forceinline__ void backward(float* shared, const float* a, const float* c, const float* x, const float* y, int a_row, int c_row, int x_row,
                                         int y_row, const float* delta, const float* exponents, int own, int first, int others, float factor,
                                         float (&first_grad)[D_TILES][4], float (&second_grad)[D_TILES][4]) {
    float *as = shared, *cs = as + OWN * PITCH, *xs = cs + OWN * PITCH, *ys = xs + OTHERS * PITCH, *of_queries = ys + OTHERS * PITCH;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, row0 = first + warp * 16 + g;
    clear(first_grad);
    clear(second_grad);
    load_tile<OWN>(as, a + (long long)first * a_row, a_row, own - first);
    load_tile<OWN>(cs, c + (long long)first * c_row, c_row, own - first);
    float own_delta[2] = {}, own_exponent[2] = {};
    if (!KEYS)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (row0 + r * 8 < own) own_delta[r] = delta[row0 + r * 8], own_exponent[r] = exponents[row0 + r * 8];
    const float *mine = as + warp * 16 * PITCH, *also_mine = cs + warp * 16 * PITCH;
    for (int at = 0; at < others; at += OTHERS) {
        __syncthreads();
        load_tile<OTHERS>(xs, x + (long long)at * x_row, x_row, others - at);
        load_tile<OTHERS>(ys, y + (long long)at * y_row, y_row, others - at);
        if (KEYS && threadIdx.x < OTHERS) {
            bool there = at + threadIdx.x < others;
            of_queries[threadIdx.x] = there ? delta[at + threadIdx.x] : 0.f;
            of_queries[OTHERS + threadIdx.x] = there ? exponents[at + threadIdx.x] : 0.f;
        }
        __syncthreads();
        float p[TILES][4], ds[TILES][4];
        multiply_rows(p, mine, xs, lane);
        multiply_rows(ds, also_mine, ys, lane);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int column = n * 8 + t * 2 + (i & 1);
                bool valid = row0 + (i >> 1) * 8 < own && at + column < others;
                float exponent = KEYS ? of_queries[OTHERS + column] : own_exponent[i >> 1];
                float less = KEYS ? of_queries[column] : own_delta[i >> 1];
                float probability = valid ? exp2_approx(fmaf(p[n][i], factor, exponent)) : 0.f;
                ds[n][i] = rounded(valid ? probability * (ds[n][i] + less) : 0.f);
                p[n][i] = rounded(probability);
            }
        multiply_columns(first_grad, ds, xs, lane);
        if (KEYS) multiply_columns(second_grad, p, ys, lane);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_kv(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ do_,
    const float* __restrict__ delta, float* __restrict__ dk, float* __restrict__ dv, void* __restrict__ work, int heads, int sq, int sk,
    int q_row, int k_row, int v_row, int do_row, int dk_row, int dv_row, float scale, long long rows) {
    extern __shared__ __align__(16) float shared[];
    int blocks = (sk + OWN - 1) / OWN;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * OWN, h = bh % heads;
    long long b = bh / heads;
    delta += (long long)bh * sq;
    float dka[D_TILES][4], dva[D_TILES][4];
    backward<true>(shared, k + b * sk * k_row + h * D, v + b * sk * v_row + h * D, q + b * sq * q_row + h * D, do_ + b * sq * do_row + h * D, k_row,
                   v_row, q_row, do_row, delta, delta + rows, sk, first, sq, scale * LOG2E, dka, dva);
    int lane = threadIdx.x & 31, row0 = first + (threadIdx.x >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + r * 8;
        if (row >= sk) continue;
        store_row(dk + (b * sk + row) * dk_row + h * D, dka, r, scale, lane & 3);
        store_row(dv + (b * sk + row) * dv_row + h * D, dva, r, 1.f, lane & 3);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_q(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ do_,
    const float* __restrict__ delta, float* __restrict__ dq, void* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row,
    int v_row, int do_row, int dq_row, float scale, long long rows) {
    extern __shared__ __align__(16) float shared[];
    int blocks = (sq + OWN - 1) / OWN;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * OWN, h = bh % heads;
    long long b = bh / heads;
    delta += (long long)bh * sq;
    float dqa[D_TILES][4], unused[D_TILES][4];
    backward<false>(shared, q + b * sq * q_row + h * D, do_ + b * sq * do_row + h * D, k + b * sk * k_row + h * D, v + b * sk * v_row + h * D, q_row,
                    do_row, k_row, v_row, delta, delta + rows, sq, first, sk, scale * LOG2E, dqa, unused);
    int lane = threadIdx.x & 31, row0 = first + (threadIdx.x >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = row0 + r * 8;
        if (row < sq) store_row(dq + (b * sq + row) * dq_row + h * D, dqa, r, scale, lane & 3);
    }
}
