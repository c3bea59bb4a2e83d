// Average and maximum over windows and their gradients, on [N, Z, Y, X, C]; one thread V channels, or of gradients one. A
// gradient gathers from the windows that hold its pixel, so that sums have a fixed order.

struct Pool {
    const T* x;
    const T* dy;
    T* y;                       // the result: pooled image, or gradient of x
    int n, c;
    int in[3], out[3], kernel[3], stride[3], before[3];
    int maximum;
    i64 count;
};

__device__ __forceinline__ i64 pixel(const int* size, i64 n, int z, int y, int x) {
    return ((n * size[0] + z) * size[1] + y) * size[2] + x;
}

#define WINDOW(z, y, x) \
    for (int z = max(oz * p.stride[0] - p.before[0], 0); z < min(oz * p.stride[0] - p.before[0] + p.kernel[0], p.in[0]); z++) \
    for (int y = max(oy * p.stride[1] - p.before[1], 0); y < min(oy * p.stride[1] - p.before[1] + p.kernel[1], p.in[1]); y++) \
    for (int x = max(ox * p.stride[2] - p.before[2], 0); x < min(ox * p.stride[2] - p.before[2] + p.kernel[2], p.in[2]); x++)

// A thread has V channels; INDEX counts them all.
extern "C" __global__ void pool(const __grid_constant__ Pool p) {
    INDEX vectors = p.c / V, count = (INDEX)(p.count / V);
    for (INDEX i = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (INDEX)gridDim.x * blockDim.x) {
        INDEX rest = i;
        int k = (int)(rest % vectors) * V; rest /= vectors;
        int ox = (int)(rest % p.out[2]); rest /= p.out[2];
        int oy = (int)(rest % p.out[1]); rest /= p.out[1];
        int oz = (int)(rest % p.out[0]);
        i64 n = (i64)(rest / p.out[0]);
        float best[V], sum[V];
#pragma unroll
        for (int e = 0; e < V; e++) best[e] = -__int_as_float(0x7f800000), sum[e] = 0.0f;
        WINDOW(z, y, x) {
            Vec<T, V> v = load<T, V>(p.x + pixel(p.in, n, z, y, x) * p.c + k);
#pragma unroll
            for (int e = 0; e < V; e++) {
                best[e] = v.at(e) > best[e] ? v.at(e) : best[e];
                sum[e] += v.at(e);
            }
        }
        Vec<T, V> result;
#pragma unroll
        for (int e = 0; e < V; e++) result.set(e, p.maximum ? best[e] : sum[e] / (float)(p.kernel[0] * p.kernel[1] * p.kernel[2]));
        store<T, V>(p.y + (i64)i * V, result);
    }
}

extern "C" __global__ void pool_grad(const __grid_constant__ Pool p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int k = (int)(rest % p.c); rest /= p.c;
        int at[3];
        for (int a = 2; a >= 0; a--) {
            at[a] = (int)(rest % p.in[a]);
            rest /= p.in[a];
        }
        i64 n = rest;
        int first[3], last[3];
        for (int a = 0; a < 3; a++) {
            int reach = at[a] + p.before[a] - p.kernel[a] + 1;
            first[a] = reach > 0 ? (reach + p.stride[a] - 1) / p.stride[a] : 0;
            last[a] = min((at[a] + p.before[a]) / p.stride[a], p.out[a] - 1);
        }
        float sum = 0;
        for (int oz = first[0]; oz <= last[0]; oz++)
        for (int oy = first[1]; oy <= last[1]; oy++)
        for (int ox = first[2]; ox <= last[2]; ox++) {
            float d = to_float(p.dy[pixel(p.out, n, oz, oy, ox) * p.c + k]);
            if (p.maximum) {
                // Of equal values the first wins.
                i64 winner = -1;
                float best = 0;
                WINDOW(z, y, x) {
                    i64 here = pixel(p.in, n, z, y, x);
                    float v = to_float(p.x[here * p.c + k]);
                    if (winner < 0 || v > best) { winner = here; best = v; }
                }
                if (winner == pixel(p.in, n, at[0], at[1], at[2])) sum += d;
            } else {
                sum += d / (float)(p.kernel[0] * p.kernel[1] * p.kernel[2]);
            }
        }
        put(p.y[i], sum);
    }
}
