// Convolutions of 3 x 3 pixels from many channels to one or two: the last of a network. Stride 1, one pixel around the image.
//
// Every pixel is read once: its products with the weights of all taps go to shared memory, where each result finds its nine.
// A thread has ROWS pixels below each other, so that a weight that was read serves several.
//
// Options: T; -DK=1|2 channels made; -DC channels read, a multiple of 8.
//
// conv_narrow(x, w [K][3][3][C], bias or 0, y, h, w, tiles_x, tiles_y): grid n tiles_y tiles_x, block (32, GROUPS); a tile is
// 30 x 14 results.

constexpr int ROWS = 4, GROUPS = 4, WIDE = 32, TALL = ROWS * GROUPS;

extern "C" __global__ void __launch_bounds__(WIDE * GROUPS) conv_narrow(const T* __restrict__ x, const T* __restrict__ w, const T* __restrict__ bias,
                                                                       T* __restrict__ y, int height, int width, int tiles_x, int tiles_y) {
    __shared__ __align__(16) float weights[C / 8][K * 9][8];
    __shared__ float sums[K * 9][TALL][WIDE];
    int lane = threadIdx.x % WIDE, first = threadIdx.x / WIDE * ROWS;
    int tile_x = blockIdx.x % tiles_x * (WIDE - 2), tile_y = blockIdx.x / tiles_x % tiles_y * (TALL - 2);
    i64 n = blockIdx.x / tiles_x / tiles_y;
    for (int i = threadIdx.x; i < K * 9 * C; i += WIDE * GROUPS) weights[i % C / 8][i / C][i % 8] = to_float(w[i]);
    __syncthreads();

    float of_tap[K * 9][ROWS] = {};
    int column = tile_x + lane - 1;
#pragma unroll 1
    for (int c = 0; c < C / 8; c++) {
        float pixel[ROWS][8] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int row = tile_y + first + r - 1;
            if (row >= 0 && row < height && column >= 0 && column < width) {
                Vec<T, 8> v = load<T, 8>(x + ((n * height + row) * width + column) * C + c * 8);
#pragma unroll
                for (int e = 0; e < 8; e++) pixel[r][e] = v.at(e);
            }
        }
#pragma unroll
        for (int tap = 0; tap < K * 9; tap++)
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float weight = weights[c][tap][e];
#pragma unroll
                for (int r = 0; r < ROWS; r++) of_tap[tap][r] += pixel[r][e] * weight;
            }
    }
#pragma unroll
    for (int tap = 0; tap < K * 9; tap++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[tap][first + r][lane] = of_tap[tap][r];
    __syncthreads();

    for (int i = threadIdx.x; i < (TALL - 2) * WIDE; i += WIDE * GROUPS) {
        int across = i % WIDE, down = i / WIDE;
        if (across >= WIDE - 2 || tile_x + across >= width || tile_y + down >= height) continue;
#pragma unroll
        for (int k = 0; k < K; k++) {
            float sum = bias ? to_float(bias[k]) : 0.0f;
#pragma unroll
            for (int tap = 0; tap < 9; tap++) sum += sums[k * 9 + tap][down + tap / 3][across + tap % 3];
            put(y[((n * height + tile_y + down) * width + tile_x + across) * K + k], sum);
        }
    }
}
