// Convolutions to at most 8 channels without tensor cores, and transposed ones: y = act(conv(x) + bias) + residual. A thread makes a voxel;
// the weights lie in shared memory in fp32. For the ends of networks on volumes, which have so few products that they are bound by
// reading and writing.
//
// Options: T; B the type of the bias; V elements that are read at a time, which divide C; C, K channels read and made; KZ, KS taps along z
// and along the others; SZ, S steps along these; TRANSPOSED=0|1; ACT(x).
//
// Weights are [K][taps][C], those of TRANSPOSED [C][taps][K]. Threads of a warp of a transposed convolution have every second pixel of a
// row, which meet the same taps.
//
// conv_few_out(p): any grid, block 256.

struct Params {
    const T *x, *w;
    const B* bias; // or none
    const T* residual; // or none
    T* y;
    int size[3], out[3], pad[3];
    i64 count; // of threads that have something to do
};

constexpr int THREADS = 256, TAPS = KZ * KS * KS, ACROSS = TRANSPOSED ? S : 1;

// The pixel of x that meets a tap at a pixel of y, or a negative number.
template <int STEP> __device__ __forceinline__ int met(int out, int tap, int pad, int size) {
    int at = TRANSPOSED ? out + pad - tap : out * STEP + tap - pad;
    if (TRANSPOSED) at = at < 0 || at % STEP ? -1 : at / STEP;
    return at < size ? at : -1;
}

extern "C" __global__ void __launch_bounds__(THREADS) conv_few_out(const __grid_constant__ Params p) {
    __shared__ __align__(16) float weights[TAPS * C][K];
    for (int i = threadIdx.x; i < TAPS * C * K; i += THREADS) {
        int k = TRANSPOSED ? i % K : i / C / TAPS, tap = TRANSPOSED ? i / K % TAPS : i / C % TAPS, c = TRANSPOSED ? i / K / TAPS : i % C;
        weights[tap * C + c][k] = to_float(p.w[i]);
    }
    __syncthreads();
    int wide = (p.out[2] + ACROSS - 1) / ACROSS;
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < p.count; i += (i64)gridDim.x * THREADS) {
        int x = (int)(i % wide) * ACROSS + (int)(i / wide % ACROSS);
        i64 line = i / wide / ACROSS;
        int y = (int)(line % p.out[1]), z = (int)(line / p.out[1] % p.out[0]);
        i64 n = line / p.out[1] / p.out[0];
        if (x >= p.out[2]) continue;
        float sum[K];
#pragma unroll
        for (int k = 0; k < K; k++) sum[k] = 0.0f;
#pragma unroll
        for (int dz = 0; dz < KZ; dz++) {
            int sz = met<SZ>(z, dz, p.pad[0], p.size[0]);
            if (sz < 0) continue;
#pragma unroll
            for (int dy = 0; dy < KS; dy++) {
                int sy = met<S>(y, dy, p.pad[1], p.size[1]);
                if (sy < 0) continue;
                const T* row = p.x + ((n * p.size[0] + sz) * p.size[1] + sy) * p.size[2] * C;
#pragma unroll
                for (int dx = 0; dx < KS; dx++) {
                    int sx = met<S>(x, dx, p.pad[2], p.size[2]);
                    if (sx < 0) continue;
                    const float(*of_tap)[K] = weights + ((dz * KS + dy) * KS + dx) * C;
#pragma unroll
                    for (int c = 0; c < C; c += V) {
                        Vec<T, V> v = load<T, V>(row + (i64)sx * C + c);
#pragma unroll
                        for (int e = 0; e < V; e++)
#pragma unroll
                            for (int k = 0; k < K; k++) sum[k] += v.at(e) * of_tap[c + e][k];
                    }
                }
            }
        }
        i64 to = (line * p.out[2] + x) * K;
        Vec<T, K> result, more;
        if (p.residual) more = load<T, K>(p.residual + to);
#pragma unroll
        for (int k = 0; k < K; k++) {
            float v = sum[k] + (p.bias ? to_float(p.bias[k]) : 0.0f);
            result.set(k, ACT(v) + (p.residual ? more.at(k) : 0.0f));
        }
        store<T, K>(p.y + to, result);
    }
}
