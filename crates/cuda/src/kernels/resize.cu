// Nearest and linear resizing of the spatial axes and its gradient, on [N, Z, Y, X, C]; one thread for V
// channels of a pixel, counted in INDEX; MODE as below.

enum { NEAREST, LINEAR, ALIGNED };

struct Resize {
    const T* x;
    T* y;
    int n, c;
    int from[3], to[3];    // sizes of the operand and of the result of resizing
    int mode;
    i64 count;             // vectors of the result
};

struct Taps {
    int low, high;
    float weight;          // of the second
    __device__ __forceinline__ Taps(int i, int from, int to, int mode) {
        if (mode == NEAREST) {
            low = (int)((INDEX)i * from / to);
            low = low < from - 1 ? low : from - 1;
            high = low;
            weight = 0.0f;
            return;
        }
        double position = 0.0;
        if (mode == LINEAR) position = ((double)i + 0.5) * (double)from / (double)to - 0.5;
        else if (to > 1) position = (double)i * (double)(from - 1) / (double)(to - 1);
        position = position > 0.0 ? position : 0.0;
        low = (int)position;
        low = low < from - 1 ? low : from - 1;
        high = low + 1 < from - 1 ? low + 1 : from - 1;
        weight = high == low ? 0.0f : (float)(position - (double)low);
    }
    __device__ __forceinline__ float of(int s) const {
        return (s == low ? 1.0f - weight : 0.0f) + (s == high ? weight : 0.0f);
    }
};

extern "C" __global__ void resize(const __grid_constant__ Resize p) {
    INDEX vectors = p.c / V, count = (INDEX)p.count;
    for (INDEX i = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (INDEX)gridDim.x * blockDim.x) {
        INDEX rest = i;
        int k = (int)(rest % vectors) * V; rest /= vectors;
        int x = (int)(rest % p.to[2]); rest /= p.to[2];
        int y = (int)(rest % p.to[1]); rest /= p.to[1];
        int z = (int)(rest % p.to[0]);
        i64 n = (i64)(rest / p.to[0]);
        Taps tz(z, p.from[0], p.to[0], MODE), ty(y, p.from[1], p.to[1], MODE), tx(x, p.from[2], p.to[2], MODE);
        const T* image = p.x + n * p.from[0] * p.from[1] * p.from[2] * p.c + k;
        float sum[V] = {};
        for (int corner = 0; corner < 8; corner++) {
            float wz = corner & 4 ? tz.weight : 1.0f - tz.weight, wy = corner & 2 ? ty.weight : 1.0f - ty.weight;
            float w = wz * wy * (corner & 1 ? tx.weight : 1.0f - tx.weight);
            if (w == 0.0f) continue;
            int sz = corner & 4 ? tz.high : tz.low, sy = corner & 2 ? ty.high : ty.low, sx = corner & 1 ? tx.high : tx.low;
            Vec<T, V> v = load<T, V>(image + (((i64)sz * p.from[1] + sy) * p.from[2] + sx) * p.c);
#pragma unroll
            for (int e = 0; e < V; e++) sum[e] += w * v.at(e);
        }
        Vec<T, V> out;
#pragma unroll
        for (int e = 0; e < V; e++) out.set(e, sum[e]);
        store<T, V>(p.y + (i64)i * V, out);
    }
}

// Targets that may read source s of an axis.
__device__ __forceinline__ void readers(int s, int from, int to, int mode, int& first, int& last) {
    double ratio = mode == ALIGNED && from > 1 ? (double)(to - 1) / (double)(from - 1) : (double)to / (double)from;
    first = (int)floor(((double)s - 1.0) * ratio) - 1;
    last = (int)ceil(((double)s + 2.0) * ratio) + 1;
    // Positions are clamped at the edges.
    if (s == 0 || first < 0) first = 0;
    if (s >= from - 1 || last > to - 1) last = to - 1;
    if (mode == ALIGNED && from == 1) { first = 0; last = to - 1; }
}

// x is the gradient of the resized, y that of the operand; `from` and `to` as in resizing.
extern "C" __global__ void resize_grad(const __grid_constant__ Resize p) {
    int vectors = p.c / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int k = (int)(rest % vectors) * V; rest /= vectors;
        int x = (int)(rest % p.from[2]); rest /= p.from[2];
        int y = (int)(rest % p.from[1]); rest /= p.from[1];
        int z = (int)(rest % p.from[0]);
        i64 n = rest / p.from[0];
        int z0, z1, y0, y1, x0, x1;
        readers(z, p.from[0], p.to[0], MODE, z0, z1);
        readers(y, p.from[1], p.to[1], MODE, y0, y1);
        readers(x, p.from[2], p.to[2], MODE, x0, x1);
        const T* image = p.x + n * p.to[0] * p.to[1] * p.to[2] * p.c + k;
        float sum[V] = {};
        for (int tz = z0; tz <= z1; tz++) {
            float wz = Taps(tz, p.from[0], p.to[0], MODE).of(z);
            if (wz == 0.0f) continue;
            for (int ty = y0; ty <= y1; ty++) {
                float wy = wz * Taps(ty, p.from[1], p.to[1], MODE).of(y);
                if (wy == 0.0f) continue;
                for (int tx = x0; tx <= x1; tx++) {
                    float w = wy * Taps(tx, p.from[2], p.to[2], MODE).of(x);
                    if (w == 0.0f) continue;
                    Vec<T, V> v = load<T, V>(image + (((i64)tz * p.to[1] + ty) * p.to[2] + tx) * p.c);
#pragma unroll
                    for (int e = 0; e < V; e++) sum[e] += w * v.at(e);
                }
            }
        }
        Vec<T, V> out;
#pragma unroll
        for (int e = 0; e < V; e++) out.set(e, sum[e]);
        store<T, V>(p.y + (i64)i * V, out);
    }
}
