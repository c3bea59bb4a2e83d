// Padding with zeros, mirrored, with the edge or with the other side, and its gradient.

enum { ZERO, REFLECT, EDGE, WRAP };

struct Pad {
    const T* x;
    T* y;
    i64 size[6];       // of the operand of padding
    i64 padded[6];
    i64 before[6];
    i64 count;
    int mode;
};

// Where padded position p comes from; negative: from nowhere.
__device__ __forceinline__ i64 source_of(i64 p, i64 before, i64 n, int mode) {
    p -= before;
    if (p >= 0 && p < n) return p;
    if (mode == REFLECT) return p < 0 ? -p : 2 * (n - 1) - p;
    if (mode == EDGE) return p < 0 ? 0 : n - 1;
    if (mode == WRAP) return (p % n + n) % n;
    return -1;
}

extern "C" __global__ void pad(const __grid_constant__ Pad p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i, from = 0, stride = 1;
        bool inside = true;
        for (int a = 5; a >= 0; a--) {
            i64 at = source_of(rest % p.padded[a], p.before[a], p.size[a], p.mode);
            inside = inside && at >= 0;
            from += at * stride;
            stride *= p.size[a];
            rest /= p.padded[a];
        }
        if (inside) p.y[i] = p.x[from];
        else put(p.y[i], 0.0f);
    }
}

// The padded positions that show position i of an axis, as at most three stretches.
struct Shown {
    i64 from[3], to[3];
    __device__ __forceinline__ Shown(i64 i, i64 before, i64 n, i64 padded, int mode) {
        from[0] = before + i;
        to[0] = from[0] + 1;
        from[1] = from[2] = to[1] = to[2] = 0;
        if (mode == REFLECT) {
            if (i > 0 && i <= before) { from[1] = before - i; to[1] = from[1] + 1; }
            i64 high = before + 2 * (n - 1) - i;
            if (i < n - 1 && high < padded) { from[2] = high; to[2] = high + 1; }
        } else if (mode == EDGE) {
            if (i == 0) { from[1] = 0; to[1] = before; }
            if (i == n - 1) { from[2] = before + n; to[2] = padded; }
        } else if (mode == WRAP) {
            if (before + i - n >= 0) { from[1] = before + i - n; to[1] = from[1] + 1; }
            if (before + i + n < padded) { from[2] = before + i + n; to[2] = from[2] + 1; }
        }
    }
};

// x is the gradient of the padded, y that of the operand.
extern "C" __global__ void pad_grad(const __grid_constant__ Pad p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 at[6], rest = i;
        for (int a = 5; a >= 0; a--) {
            at[a] = rest % p.size[a];
            rest /= p.size[a];
        }
        float sum = 0;
        Shown s0(at[0], p.before[0], p.size[0], p.padded[0], p.mode), s1(at[1], p.before[1], p.size[1], p.padded[1], p.mode);
        Shown s2(at[2], p.before[2], p.size[2], p.padded[2], p.mode), s3(at[3], p.before[3], p.size[3], p.padded[3], p.mode);
        Shown s4(at[4], p.before[4], p.size[4], p.padded[4], p.mode), s5(at[5], p.before[5], p.size[5], p.padded[5], p.mode);
#define ALONG(s, k, i) for (int k = 0; k < 3; k++) for (i64 i = s.from[k]; i < s.to[k]; i++)
        ALONG(s0, k0, i0) ALONG(s1, k1, i1) ALONG(s2, k2, i2) ALONG(s3, k3, i3) ALONG(s4, k4, i4) ALONG(s5, k5, i5) {
            i64 from = ((((i0 * p.padded[1] + i1) * p.padded[2] + i2) * p.padded[3] + i3) * p.padded[4] + i4) * p.padded[5] + i5;
            sum += to_float(p.x[from]);
        }
        put(p.y[i], sum);
    }
}
