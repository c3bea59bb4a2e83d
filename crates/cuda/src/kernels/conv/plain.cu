// What convolutions need besides the library: epilogues, gathering parts, and plain convolutions for
// shapes that the library refuses. Tensors are [N, Z, Y, X, C], weights [K, kz, ky, kx, C / groups].

// y = act(y + bias) + residual, in place, on [N, S, C].
extern "C" __global__ void epilogue(const T* x, T* y, const B* bias, const T* residual, i64 s, int c, int per_sample, i64 count) {
    int vectors = c / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 pixel = i / vectors;
        int k = (int)(i % vectors) * V;
        Vec<T, V> v = load<T, V>(x + i * V), extra, out;
        if (residual) extra = load<T, V>(residual + i * V);
        const B* b = bias ? bias + (per_sample ? pixel / s * c : 0) + k : 0;
#pragma unroll
        for (int e = 0; e < V; e++) {
            float u = v.at(e) + (b ? to_float(b[e]) : 0.0f);
            out.set(e, ACT(u) + (residual ? extra.at(e) : 0.0f));
        }
        store<T, V>(y + i * V, out);
    }
}

// Channels `first..first + c` of rows of `to` channels, from rows of `from` channels.
extern "C" __global__ void copy_channels(const T* x, T* y, i64 rows, int c, int from, int from_first, int to, int to_first) {
    int vectors = c / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * vectors; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / vectors;
        int k = (int)(i % vectors) * V;
        store<T, V>(y + row * to + to_first + k, load<T, V>(x + row * from + from_first + k));
    }
}

// Rows of c channels into rows of `wide`, zeros behind them; rows from `rows` on are zeros throughout.
extern "C" __global__ void widen_channels(const T* x, T* y, i64 rows, int c, int wide, i64 count) {
    int vectors = wide / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count / V; i += (i64)gridDim.x * blockDim.x) {
        i64 row = i / vectors;
        int k = (int)(i % vectors) * V;
        Vec<T, V> out;
#pragma unroll
        for (int e = 0; e < V; e++) out.set(e, row < rows && k + e < c ? to_float(x[row * c + k + e]) : 0.0f);
        store<T, V>(y + i * V, out);
    }
}

struct Conv {
    const T* x;       // input, or its gradient's place is `y`
    const T* w;
    const T* dy;
    T* y;
    int n, c, k, groups;
    int in[3], out[3], kernel[3], stride[3], before[3], dilation[3];
    i64 count;
};

__device__ __forceinline__ i64 pixel(const int* size, i64 n, int z, int y, int x) {
    return ((n * size[0] + z) * size[1] + y) * size[2] + x;
}

extern "C" __global__ void plain_conv(const __grid_constant__ Conv p) {
    int cg = p.c / p.groups, kg = p.k / p.groups;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int k = (int)(rest % p.k); rest /= p.k;
        int at[3];
        for (int a = 2; a >= 0; a--) { at[a] = (int)(rest % p.out[a]) * p.stride[a] - p.before[a]; rest /= p.out[a]; }
        float sum = 0;
        for (int tz = 0; tz < p.kernel[0]; tz++) {
            int z = at[0] + tz * p.dilation[0];
            if (z < 0 || z >= p.in[0]) continue;
            for (int ty = 0; ty < p.kernel[1]; ty++) {
                int y = at[1] + ty * p.dilation[1];
                if (y < 0 || y >= p.in[1]) continue;
                for (int tx = 0; tx < p.kernel[2]; tx++) {
                    int x = at[2] + tx * p.dilation[2];
                    if (x < 0 || x >= p.in[2]) continue;
                    const T* from = p.x + pixel(p.in, rest, z, y, x) * p.c + k / kg * cg;
                    const T* w = p.w + (((i64)k * p.kernel[0] + tz) * p.kernel[1] + ty) * p.kernel[2] * cg + (i64)tx * cg;
                    for (int c = 0; c < cg; c++) sum += to_float(from[c]) * to_float(w[c]);
                }
            }
        }
        put(p.y[i], sum);
    }
}

extern "C" __global__ void plain_input_grad(const __grid_constant__ Conv p) {
    int cg = p.c / p.groups, kg = p.k / p.groups;
    i64 taps = (i64)p.kernel[0] * p.kernel[1] * p.kernel[2];
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int c = (int)(rest % p.c); rest /= p.c;
        int at[3];
        for (int a = 2; a >= 0; a--) { at[a] = (int)(rest % p.in[a]) + p.before[a]; rest /= p.in[a]; }
        int group = c / cg;
        float sum = 0;
        for (int tz = 0; tz < p.kernel[0]; tz++) {
            int z = at[0] - tz * p.dilation[0];
            if (z < 0 || z % p.stride[0] || z / p.stride[0] >= p.out[0]) continue;
            for (int ty = 0; ty < p.kernel[1]; ty++) {
                int y = at[1] - ty * p.dilation[1];
                if (y < 0 || y % p.stride[1] || y / p.stride[1] >= p.out[1]) continue;
                for (int tx = 0; tx < p.kernel[2]; tx++) {
                    int x = at[2] - tx * p.dilation[2];
                    if (x < 0 || x % p.stride[2] || x / p.stride[2] >= p.out[2]) continue;
                    const T* dy = p.dy + pixel(p.out, rest, z / p.stride[0], y / p.stride[1], x / p.stride[2]) * p.k;
                    i64 tap = ((i64)tz * p.kernel[1] + ty) * p.kernel[2] + tx;
                    for (int k = group * kg; k < (group + 1) * kg; k++)
                        sum += to_float(dy[k]) * to_float(p.w[((i64)k * taps + tap) * cg + c - group * cg]);
                }
            }
        }
        put(p.y[i], sum);
    }
}

// One block a weight.
extern "C" __global__ void plain_weight_grad(const __grid_constant__ Conv p) {
    __shared__ float scratch[33];
    int cg = p.c / p.groups, kg = p.k / p.groups;
    i64 rest = blockIdx.x;
    int c = (int)(rest % cg); rest /= cg;
    int tx = (int)(rest % p.kernel[2]); rest /= p.kernel[2];
    int ty = (int)(rest % p.kernel[1]); rest /= p.kernel[1];
    int tz = (int)(rest % p.kernel[0]);
    int k = (int)(rest / p.kernel[0]);
    i64 outs = (i64)p.out[0] * p.out[1] * p.out[2];
    float sum = 0;
    for (i64 i = threadIdx.x; i < p.n * outs; i += blockDim.x) {
        i64 left = i;
        int ox = (int)(left % p.out[2]); left /= p.out[2];
        int oy = (int)(left % p.out[1]); left /= p.out[1];
        int oz = (int)(left % p.out[0]);
        i64 n = left / p.out[0];
        int z = oz * p.stride[0] - p.before[0] + tz * p.dilation[0];
        int y = oy * p.stride[1] - p.before[1] + ty * p.dilation[1];
        int x = ox * p.stride[2] - p.before[2] + tx * p.dilation[2];
        if (z < 0 || z >= p.in[0] || y < 0 || y >= p.in[1] || x < 0 || x >= p.in[2]) continue;
        sum += to_float(p.x[pixel(p.in, n, z, y, x) * p.c + k / kg * cg + c]) * to_float(p.dy[i * p.k + k]);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) put(p.y[blockIdx.x], sum);
}
