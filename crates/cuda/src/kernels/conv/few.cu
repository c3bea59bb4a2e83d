// A convolution of 3 x 3 pixels from one or two channels to many, stride 1, with its bias: the first of a network. It is bound
// by writing the many, and so few products need no tensor cores: a thread keeps the weights of V channels in registers and
// goes along a row of pixels.
//
// Options: T the type of elements, C channels that are read, V channels of a thread, ACROSS threads beside each other along
// channels, PIXELS along a row.
//
// conv_few(x, w, bias, y, h, width, k, tiles_x, tiles_y): grid of tiles of all images, and of stretches of V ACROSS channels.

constexpr int THREADS = 256, ROWS = THREADS / ACROSS, TAPS = 9;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv_few(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias, T* __restrict__ y, int h, int width, int k,
             int tiles_x, int tiles_y) {
    __shared__ float patch[ROWS + 2][PIXELS + 2][C];
    __shared__ float all_weights[TAPS * C][V * ACROSS];
    int tile = blockIdx.x, x0 = tile % tiles_x * PIXELS, y0 = tile / tiles_x % tiles_y * ROWS;
    i64 n = tile / tiles_x / tiles_y;
    for (int i = threadIdx.x; i < (ROWS + 2) * (PIXELS + 2) * C; i += THREADS) {
        int c = i % C, px = i / C % (PIXELS + 2), py = i / C / (PIXELS + 2), sx = x0 + px - 1, sy = y0 + py - 1;
        bool inside = sx >= 0 && sx < width && sy >= 0 && sy < h;
        patch[py][px][c] = inside ? to_float(x[((n * h + sy) * width + sx) * C + c]) : 0.0f;
    }
    const T* of_block = w + (i64)blockIdx.y * ACROSS * V * TAPS * C;
    for (int i = threadIdx.x; i < ACROSS * V * TAPS * C; i += THREADS) all_weights[i % (TAPS * C)][i / (TAPS * C)] = to_float(of_block[i]);
    __syncthreads();
    int lane = threadIdx.x % ACROSS, row = threadIdx.x / ACROSS, first = ((int)blockIdx.y * ACROSS + lane) * V;
    if (y0 + row >= h) return;
    float weights[TAPS * C][V], start[V];
#pragma unroll
    for (int e = 0; e < V; e++) {
        start[e] = bias ? to_float(bias[first + e]) : 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS * C; j++) weights[j][e] = all_weights[j][lane * V + e];
    }
    T* out = y + ((n * h + y0 + row) * width + x0) * k + first;
    int count = width - x0 < PIXELS ? width - x0 : PIXELS;
    float seen[3][3][C];
#pragma unroll
    for (int dy = 0; dy < 3; dy++)
#pragma unroll
        for (int dx = 0; dx < 2; dx++)
#pragma unroll
            for (int c = 0; c < C; c++) seen[dy][dx][c] = patch[row + dy][dx][c];
#pragma unroll 3
    for (int px = 0; px < count; px++) {
#pragma unroll
        for (int dy = 0; dy < 3; dy++)
#pragma unroll
            for (int c = 0; c < C; c++) seen[dy][2][c] = patch[row + dy][px + 2][c];
        float sum[V];
#pragma unroll
        for (int e = 0; e < V; e++) sum[e] = start[e];
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
            for (int c = 0; c < C; c++)
#pragma unroll
                for (int e = 0; e < V; e++) sum[e] += seen[tap / 3][tap % 3][c] * weights[tap * C + c][e];
        Vec<T, V> result;
#pragma unroll
        for (int e = 0; e < V; e++) result.set(e, sum[e]);
        store<T, V>(out + (i64)px * k, result);
#pragma unroll
        for (int dy = 0; dy < 3; dy++)
#pragma unroll
            for (int c = 0; c < C; c++) seen[dy][0][c] = seen[dy][1][c], seen[dy][1][c] = seen[dy][2][c];
    }
}
