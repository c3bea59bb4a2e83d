// Convolution of 3 x 3 pixels on an image upsampled to twice its size, as one of 2 x 2 pixels on the small
// image with four times the outputs: a large pixel's two taps to one side fall on one small pixel, so
// each of the four phases (large row and column odd or even) has 2 x 2 taps. The small convolution, padded
// by one pixel, gives [N, H + 1, W + 1, 4 K]; phase (py, px) of small pixel (y, x) lies at (y + py, x + px).

// Weights [K, 3, 3, C] -> [4 K, 2, 2, C]. One thread W channels of one output.
extern "C" __global__ void phase_weights(const T* w, T* out, int k, int c) {
    int vectors = c / W, count = k * vectors;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        int o = i / vectors, ch = i % vectors * W;
        Vec<T, W> from[3][3];
#pragma unroll
        for (int t = 0; t < 9; t++) from[t / 3][t % 3] = load<T, W>(w + ((i64)o * 9 + t) * c + ch);
#pragma unroll
        for (int p = 0; p < 16; p++) {
            int py = p >> 3, px = p >> 2 & 1, ty = p >> 1 & 1, tx = p & 1;
            // Taps of the large kernel that fall on this one: 0 | 1, 2 in the even phase, 0, 1 | 2 in the odd.
            int y0 = ty ? (py ? 2 : 1) : 0, y1 = ty ? 2 : (py ? 1 : 0);
            int x0 = tx ? (px ? 2 : 1) : 0, x1 = tx ? 2 : (px ? 1 : 0);
            Vec<T, W> sum;
#pragma unroll
            for (int e = 0; e < W; e++) {
                float total = 0;
#pragma unroll
                for (int t = 0; t < 9; t++)
                    if (t / 3 >= y0 && t / 3 <= y1 && t % 3 >= x0 && t % 3 <= x1) total += from[t / 3][t % 3].at(e);
                sum.set(e, total);
            }
            store<T, W>(out + ((((i64)(py * 2 + px) * k + o) * 2 + ty) * 2 + tx) * c + ch, sum);
        }
    }
}

// The gradient of those weights -> the gradient of the 3 x 3. One thread W channels of one output.
extern "C" __global__ void phase_weights_grad(const T* g, T* out, int k, int c) {
    int vectors = c / W, count = k * vectors;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        int o = i / vectors, ch = i % vectors * W;
        Vec<T, W> from[16];
#pragma unroll
        for (int p = 0; p < 16; p++) from[p] = load<T, W>(g + (((i64)(p >> 2) * k + o) * 4 + (p & 3)) * c + ch);
#pragma unroll
        for (int t = 0; t < 9; t++) {
            int y = t / 3, x = t % 3;
            Vec<T, W> sum;
#pragma unroll
            for (int e = 0; e < W; e++) {
                float total = 0;
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    int py = p >> 1, px = p & 1, ty = py ? y == 2 : y > 0, tx = px ? x == 2 : x > 0;
                    total += from[p * 4 + ty * 2 + tx].at(e);
                }
                sum.set(e, total);
            }
            store<T, W>(out + ((i64)o * 9 + t) * c + ch, sum);
        }
    }
}

// Small convolution's result -> large image [N, 2 H, 2 W, K], with the bias. One thread V channels.
extern "C" __global__ void phase_gather(const T* u, T* y, const B* bias, int h, int w, int k, i64 count) {
    int vectors = k / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int c = (int)(rest % vectors) * V; rest /= vectors;
        int lx = (int)(rest % (2 * w)); rest /= 2 * w;
        int ly = (int)(rest % (2 * h));
        i64 n = rest / (2 * h);
        int py = ly & 1, px = lx & 1;
        i64 from = ((n * (h + 1) + (ly >> 1) + py) * (w + 1) + (lx >> 1) + px) * 4 * k + (py * 2 + px) * k + c;
        Vec<T, V> v = load<T, V>(u + from);
        if (bias) {
#pragma unroll
            for (int e = 0; e < V; e++) v.set(e, v.at(e) + to_float(bias[c + e]));
        }
        store<T, V>(y + i * V, v);
    }
}

// Gradient of the large image -> gradient of the small convolution's result; zero where a phase has no pixel.
extern "C" __global__ void phase_scatter(const T* dy, T* u, int h, int w, int k, i64 count) {
    int vectors = k / V;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int c = (int)(rest % vectors) * V; rest /= vectors;
        int px = (int)(rest & 1), py = (int)(rest >> 1 & 1); rest >>= 2;
        int x = (int)(rest % (w + 1)) - px; rest /= w + 1;
        int y = (int)(rest % (h + 1)) - py;
        i64 n = rest / (h + 1);
        Vec<T, V> v;
        if (x >= 0 && x < w && y >= 0 && y < h) {
            v = load<T, V>(dy + ((n * 2 * h + 2 * y + py) * 2 * w + 2 * x + px) * k + c);
        } else {
#pragma unroll
            for (int e = 0; e < V; e++) v.set(e, 0.0f);
        }
        store<T, V>(u + i * V, v);
    }
}
