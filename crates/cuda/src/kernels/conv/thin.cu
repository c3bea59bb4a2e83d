// Convolutions between few channels and many, as matrix products: the taps of the few channels lie side by
// side. `sign` is 1 for what a convolution reads, -1 for what its adjoint reads. Stride is 1.

struct Thin {
    const T* x;
    const S* z;
    T* out;
    int c, wide;                     // few channels; taps times channels, rounded up
    int from[3], to[3];              // sizes of the image that is read, and of the one that is made
    int kernel[3], before[3], dilation[3];
    int sign;
    i64 count;
};

__device__ __forceinline__ i64 place(const Thin& p, i64 n, const int at[3], int tap) {
    int t[3];
    t[2] = tap % p.kernel[2];
    t[1] = tap / p.kernel[2] % p.kernel[1];
    t[0] = tap / p.kernel[2] / p.kernel[1];
    i64 pixel = n;
    for (int a = 0; a < 3; a++) {
        int q = at[a] + p.sign * (t[a] * p.dilation[a] - p.before[a]);
        if (q < 0 || q >= p.from[a]) return -1;
        pixel = pixel * p.from[a] + q;
    }
    return pixel;
}

__device__ __forceinline__ i64 unravel(const Thin& p, i64 row, int at[3]) {
    for (int a = 2; a >= 0; a--) {
        at[a] = (int)(row % p.to[a]);
        row /= p.to[a];
    }
    return row;
}

// x [N, from, c] -> out [N, to, wide]: one thread a pixel and tap.
extern "C" __global__ void gather_taps(const __grid_constant__ Thin p) {
    int taps = p.kernel[0] * p.kernel[1] * p.kernel[2], slots = (p.wide + p.c - 1) / p.c;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / slots;
        int tap = (int)(i % slots), at[3];
        i64 n = unravel(p, row, at), from = tap < taps ? place(p, n, at, tap) : -1;
        T* out = p.out + row * p.wide + tap * p.c;
        for (int c = 0; c < p.c && tap * p.c + c < p.wide; c++) {
            if (from >= 0) out[c] = p.x[from * p.c + c];
            else put(out[c], 0.0f);
        }
    }
}

// z [N, from, wide] -> out [N, to, c]: each adds its taps of the pixels around.
extern "C" __global__ void sum_taps(const __grid_constant__ Thin p) {
    int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        int c = (int)(i % p.c), at[3];
        i64 n = unravel(p, i / p.c, at);
        float sum = 0;
        for (int tap = 0; tap < taps; tap++) {
            i64 from = place(p, n, at, tap);
            if (from >= 0) sum += to_float(p.z[from * p.wide + tap * p.c + c]);
        }
        put(p.out[i], sum);
    }
}

// Weights [K, taps, C] -> [taps K (up to wide), C], or back.
extern "C" __global__ void turn_weights(const T* w, T* out, int k, int taps, int c, int wide, int back) {
    i64 count = (i64)(back ? k * taps : wide) * c;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        int ch = (int)(i % c), j = (int)(i / c);
        if (back) out[i] = w[((i64)(j % taps) * k + j / taps) * c + ch];
        else if (j < k * taps) out[i] = w[((i64)(j % k) * taps + j / k) * c + ch];
        else put(out[i], 0.0f);
    }
}
