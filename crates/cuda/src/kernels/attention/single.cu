// Attention in float32, forward and backward, with plain FMAs and tiles in shared memory. Stands behind delta.cu.
//
// attention_forward(q, k, v, o, lse, work, heads, sq, sk, q_row, k_row, v_row, o_row, scale)
//   grid  ceil(sq / TILE) * B * H, dynamic shared memory (3 TILE (HEAD_DIM + 4) + TILE (TILE + 4)) * 4 bytes
// attention_backward_kv(q, k, v, do_, delta, dk, dv, work, heads, sq, sk, q_row, k_row, v_row, do_row, dk_row, dv_row, scale, rows)
//   grid  ceil(sk / TILE) * B * H, dynamic shared memory (4 TILE (HEAD_DIM + 4) + 2 TILE (TILE + 4)) * 4 bytes
// attention_backward_q(q, k, v, do_, delta, dq, work, heads, sq, sk, q_row, k_row, v_row, do_row, dq_row, scale, rows)
//   grid  ceil(sq / TILE) * B * H, dynamic shared memory (4 TILE (HEAD_DIM + 4) + 2 TILE (TILE + 4)) * 4 bytes
// Blocks are of 128 threads. work is not used.
// Options: -DHEAD_DIM=8|16|32|64|128, -DD=<real head size>, -DVEC=4|2|1, -DTILE=64|32 (rows and columns of a tile).

constexpr int THREADS = 128;
constexpr int ROWS = TILE / 16;   // rows of a tile that one thread holds: ty, ty + 16, ...
constexpr int COLUMNS = TILE / 8; // columns of a tile that one thread holds: tx, tx + 8, ...
constexpr int PITCH = HEAD_DIM + 4, P_PITCH = TILE + 4;
constexpr int WIDTH = HEAD_DIM >= 32 ? 4 : HEAD_DIM / 8;  // neighbouring channels that one thread holds
constexpr int GROUPS = HEAD_DIM / (8 * WIDTH);            // and how many such runs, 8 WIDTH apart
constexpr float LOG2E_REST = 1.925963033500e-8f;

// scale log2(e) in two parts: large logits would show the rounding of one.
struct Factor {
    float high, low;
    __device__ __forceinline__ Factor(float scale) {
        high = scale * LOG2E;
        low = fmaf(scale, LOG2E, -high) + scale * LOG2E_REST;
    }
    __device__ __forceinline__ float times(float x, float plus) const { return fmaf(x, high, fmaf(x, low, plus)); }
};

// Rows of a head into [TILE][PITCH]; zeros past `valid_rows` and past D.
__device__ __forceinline__ void load_tile(float* to, const float* from, int row_stride, int valid_rows) {
    typedef typename Vector<VEC>::type vector;
    constexpr int CHUNKS = HEAD_DIM / VEC;
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS * VEC;
        vector x = {};
        if (r < valid_rows && c < D) x = *(const vector*)(from + (long long)r * row_stride + c);
        *(vector*)(to + r * PITCH + c) = x;
    }
}

// s[i][j] = row ty + 16 i of a times row tx + 8 j of b.
__device__ __forceinline__ void multiply_rows(float (&s)[ROWS][COLUMNS], const float* a, const float* b, int ty, int tx) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) s[i][j] = 0.f;
#pragma unroll 4
    for (int d = 0; d < HEAD_DIM; d += 4) {
        float4 x[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) x[i] = *(const float4*)(a + (ty + 16 * i) * PITCH + d);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float4 y = *(const float4*)(b + (tx + 8 * j) * PITCH + d);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                s[i][j] = fmaf(x[i].x, y.x, s[i][j]);
                s[i][j] = fmaf(x[i].y, y.y, s[i][j]);
                s[i][j] = fmaf(x[i].z, y.z, s[i][j]);
                s[i][j] = fmaf(x[i].w, y.w, s[i][j]);
            }
        }
    }
}

// acc[i] += row ty + 16 i of p times b, for this thread's channels.
__device__ __forceinline__ void multiply_columns(float (&acc)[ROWS][GROUPS][WIDTH], const float* p, const float* b, int ty, int tx) {
    typedef typename Vector<WIDTH>::type vector;
#pragma unroll 2
    for (int c = 0; c < TILE; c += 4) {
        float4 x[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) x[i] = *(const float4*)(p + (ty + 16 * i) * P_PITCH + c);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int u = 0; u < GROUPS; u++) {
                vector y = *(const vector*)(b + (c + e) * PITCH + u * 8 * WIDTH + tx * WIDTH);
#pragma unroll
                for (int w = 0; w < WIDTH; w++)
#pragma unroll
                    for (int i = 0; i < ROWS; i++) acc[i][u][w] = fmaf(((const float*)&x[i])[e], ((const float*)&y)[w], acc[i][u][w]);
            }
    }
}

__device__ __forceinline__ void clear(float (&acc)[ROWS][GROUPS][WIDTH]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int u = 0; u < GROUPS; u++)
#pragma unroll
            for (int w = 0; w < WIDTH; w++) acc[i][u][w] = 0.f;
}

__device__ __forceinline__ void store_row(float* to, const float (&acc)[GROUPS][WIDTH], float factor, int tx) {
#pragma unroll
    for (int u = 0; u < GROUPS; u++)
#pragma unroll
        for (int w = 0; w < WIDTH; w++) {
            int c = u * 8 * WIDTH + tx * WIDTH + w;
            if (c < D) to[c] = acc[u][w] * factor;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(const float* __restrict__ q, const float* __restrict__ k,
                                                                      const float* __restrict__ v, float* __restrict__ o,
                                                                      float* __restrict__ lse, const void* __restrict__ work, int heads,
                                                                      int sq, int sk, int q_row, int k_row, int v_row, int o_row, float scale) {
    extern __shared__ __align__(16) float shared[];
    float *qs = shared, *ks = qs + TILE * PITCH, *vs = ks + TILE * PITCH, *ps = vs + TILE * PITCH;
    int blocks = (sq + TILE - 1) / TILE;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * TILE, h = bh % heads;
    long long b = bh / heads;
    int tx = threadIdx.x & 7, ty = threadIdx.x >> 3;
    q += (b * sq + first) * q_row + h * D;
    k += b * sk * k_row + h * D;
    v += b * sk * v_row + h * D;
    o += (b * sq + first) * o_row + h * D;
    Factor factor(scale);
    float acc[ROWS][GROUPS][WIDTH], top[ROWS], sum[ROWS];
    clear(acc);
#pragma unroll
    for (int i = 0; i < ROWS; i++) top[i] = minus_infinity(), sum[i] = 0.f;
    load_tile(qs, q, q_row, sq - first);

    for (int at = 0; at < sk; at += TILE) {
        __syncthreads();
        load_tile(ks, k + (long long)at * k_row, k_row, sk - at);
        load_tile(vs, v + (long long)at * v_row, v_row, sk - at);
        __syncthreads();
        float s[ROWS][COLUMNS];
        multiply_rows(s, qs, ks, ty, tx);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float best = minus_infinity();
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                if (at + tx + 8 * j >= sk) s[i][j] = minus_infinity();
                best = fmaxf(best, s[i][j] * factor.high);
            }
#pragma unroll
            for (int x = 4; x; x >>= 1) best = fmaxf(best, __shfl_xor_sync(~0u, best, x));
            best = fmaxf(best, top[i]);
            float shrink = exp2f(top[i] - best);
            top[i] = best;
            sum[i] *= shrink;
#pragma unroll
            for (int u = 0; u < GROUPS; u++)
#pragma unroll
                for (int w = 0; w < WIDTH; w++) acc[i][u][w] *= shrink;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float p = at + tx + 8 * j < sk ? exp2f(factor.times(s[i][j], -best)) : 0.f;
                sum[i] += p;
                ps[(ty + 16 * i) * P_PITCH + tx + 8 * j] = p;
            }
        }
        __syncwarp(); // a row of p is written and read by the same eight lanes
        multiply_columns(acc, ps, vs, ty, tx);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float total = sum[i];
#pragma unroll
        for (int x = 4; x; x >>= 1) total += __shfl_xor_sync(~0u, total, x);
        int row = ty + 16 * i;
        if (first + row >= sq) continue;
        store_row(o + (long long)row * o_row, acc[i], 1.f / total, tx);
        if (tx == 0) lse[(long long)bh * sq + first + row] = (top[i] + log2f(total)) * LN2;
    }
}

// Both gradients: `a` and `c` are the block's own rows (k and v, or q and do), `x` and `y` the rows it goes through
// (q and do, or k and v). KEYS: own rows are keys. Then p (only for keys) and ds stand in shared memory, own rows first.
template <bool KEYS>
__device__ __forceinline__ void backward(float* shared, const float* a, const float* c, const float* x, const float* y, int a_row, int c_row, int x_row,
                                         int y_row, const float* delta, const float* exponents, int own, int first, int others, Factor factor,
                                         float (&first_grad)[ROWS][GROUPS][WIDTH], float (&second_grad)[ROWS][GROUPS][WIDTH]) {
    float *as = shared, *cs = as + TILE * PITCH, *xs = cs + TILE * PITCH, *ys = xs + TILE * PITCH;
    float *ps = ys + TILE * PITCH, *ds = ps + TILE * P_PITCH;
    int tx = threadIdx.x & 7, ty = threadIdx.x >> 3;
    clear(first_grad);
    clear(second_grad);
    load_tile(as, a + (long long)first * a_row, a_row, own - first);
    load_tile(cs, c + (long long)first * c_row, c_row, own - first);
    for (int at = 0; at < others; at += TILE) {
        __syncthreads();
        load_tile(xs, x + (long long)at * x_row, x_row, others - at);
        load_tile(ys, y + (long long)at * y_row, y_row, others - at);
        __syncthreads();
        float s[ROWS][COLUMNS], dp[ROWS][COLUMNS];
        multiply_rows(s, as, xs, ty, tx);
        multiply_rows(dp, cs, ys, ty, tx);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                int row = first + ty + 16 * i, column = at + tx + 8 * j;
                bool valid = row < own && column < others;
                int query = KEYS ? column : row;
                float p = valid ? exp2f(factor.times(s[i][j], exponents[query])) : 0.f;
                int to = (ty + 16 * i) * P_PITCH + tx + 8 * j;
                if (KEYS) ps[to] = p;
                ds[to] = valid ? p * (dp[i][j] + delta[query]) : 0.f;
            }
        __syncwarp(); // rows of p and ds are written and read by the same eight lanes
        multiply_columns(first_grad, ds, xs, ty, tx);
        if (KEYS) multiply_columns(second_grad, ps, ys, ty, tx);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_kv(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ do_,
    const float* __restrict__ delta, float* __restrict__ dk, float* __restrict__ dv, void* __restrict__ work, int heads, int sq, int sk,
    int q_row, int k_row, int v_row, int do_row, int dk_row, int dv_row, float scale, long long rows) {
    extern __shared__ __align__(16) float shared[];
    int blocks = (sk + TILE - 1) / TILE;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * TILE, h = bh % heads;
    long long b = bh / heads;
    delta += (long long)bh * sq;
    float dka[ROWS][GROUPS][WIDTH], dva[ROWS][GROUPS][WIDTH];
    backward<true>(shared, k + b * sk * k_row + h * D, v + b * sk * v_row + h * D, q + b * sq * q_row + h * D, do_ + b * sq * do_row + h * D, k_row,
                   v_row, q_row, do_row, delta, delta + rows, sk, first, sq, Factor(scale), dka, dva);
    int tx = threadIdx.x & 7, ty = threadIdx.x >> 3;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = first + ty + 16 * i;
        if (row >= sk) continue;
        store_row(dk + (b * sk + row) * dk_row + h * D, dka[i], scale, tx);
        store_row(dv + (b * sk + row) * dv_row + h * D, dva[i], 1.f, tx);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_q(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ do_,
    const float* __restrict__ delta, float* __restrict__ dq, void* __restrict__ work, int heads, int sq, int sk, int q_row, int k_row,
    int v_row, int do_row, int dq_row, float scale, long long rows) {
    extern __shared__ __align__(16) float shared[];
    int blocks = (sq + TILE - 1) / TILE;
    int bh = blockIdx.x / blocks, first = blockIdx.x % blocks * TILE, h = bh % heads;
    long long b = bh / heads;
    delta += (long long)bh * sq;
    float dqa[ROWS][GROUPS][WIDTH], unused[ROWS][GROUPS][WIDTH];
    backward<false>(shared, q + b * sq * q_row + h * D, do_ + b * sq * do_row + h * D, k + b * sk * k_row + h * D, v + b * sk * v_row + h * D, q_row,
                    do_row, k_row, v_row, delta, delta + rows, sq, first, sk, Factor(scale), dqa, unused);
    int tx = threadIdx.x & 7, ty = threadIdx.x >> 3;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = first + ty + 16 * i;
        if (row < sq) store_row(dq + (b * sq + row) * dq_row + h * D, dqa[i], scale, tx);
    }
}
