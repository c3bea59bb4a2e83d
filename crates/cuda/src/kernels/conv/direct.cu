// Convolutions of 3 x 3 pixels in fp32 by plain multiplications, for cards whose tensor cores would round. Stride 1, one pixel
// around the image.
//
// A block makes a tile of the image and some of the channels. Channels are summed EACH at a time: their part of the image and their
// weights come to shared memory while those before are multiplied. A thread makes 8 pixels of a row and 8 channels: the 10 pixels
// that it reads serve all taps of a row, so that a number from shared memory is multiplied more than five times. Lanes of a
// warp have their own pixels and the same weights.
//
// An image that is seen at twice its size is convolved as it is: each of the four phases of the result has 2 x 2 taps of its own
// (see phases.cu), and TAPS is 2.
//
// Options: -DK_TILE channels of a block, a multiple of 8; -DTAPS=3|2 along a side; B, the bias's type; ACT.
//
// conv_direct(x [n][height][width][c], w [k][3][3][c] or [4][k][2][2][c], bias or 0, residual or 0, y, height, width, c, k, tiles_x,
// tiles_y, 1 for a bias of each sample): grid (n tiles_y tiles_x, tiles of channels, of all phases), block 4 K_TILE. k is a multiple
// of 8.

constexpr int TALL = 8, WIDE = 32, EACH = 8, PHASES = TAPS == 2 ? 4 : 1, SCALE = TAPS == 2 ? 2 : 1;
constexpr int THREADS = 4 * K_TILE;
// Rows keep vectors aligned, planes and rows of weights keep the EACH channels that come together in different banks.
constexpr int ROW = WIDE + 4, PLANE = (TALL + 2) * ROW + 4, K_ROW = K_TILE + 4;
constexpr int IMAGE = EACH * PLANE, STAGE = IMAGE + TAPS * TAPS * EACH * K_ROW;
constexpr int ACROSS = WIDE + TAPS - 1, PIXELS = (TALL + TAPS - 1) * ACROSS;
constexpr int FETCHES = (PIXELS * EACH + THREADS - 1) / THREADS;

// A number to shared memory, or 0.
__device__ __forceinline__ void fetch(float* to, const float* from, bool there) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(there ? 4 : 0));
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv_direct(const float* __restrict__ x, const float* __restrict__ w, const B* __restrict__ bias, const float* residual, float* y,
                int height, int width, int c, int k, int tiles_x, int tiles_y, int by_sample) {
    extern __shared__ __align__(16) float shared[];
    int tile_x = blockIdx.x % tiles_x * WIDE, tile_y = blockIdx.x / tiles_x % tiles_y * TALL;
    int n = blockIdx.x / tiles_x / tiles_y, tiles_k = gridDim.y / PHASES;
    int first = blockIdx.y % tiles_k * K_TILE, phase = blockIdx.y / tiles_k, down = phase / 2, right = phase % 2;
    w += (i64)phase * k * TAPS * TAPS * c;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Of the EACH channels that are summed next, a thread always brings the same one.
    int channel = threadIdx.x % EACH, part = threadIdx.x / EACH;

    int from[FETCHES];  // the pixel that a fetch is of, or -1
#pragma unroll
    for (int i = 0; i < FETCHES; i++) {
        int p = part + i * (THREADS / EACH);
        int row = tile_y + p / ACROSS - 1 + down, column = tile_x + p % ACROSS - 1 + right;
        bool inside = p < PIXELS && row >= 0 && row < height && column >= 0 && column < width;
        from[i] = inside ? (n * height + row) * width + column : -1;
    }
    auto bring = [&](int chunk) {
        float* stage = shared + chunk % 2 * STAGE;
        int at = chunk * EACH + channel;
        bool is_channel = at < c;
#pragma unroll
        for (int i = 0; i < FETCHES; i++) {
            int p = part + i * (THREADS / EACH);
            bool there = is_channel && from[i] >= 0;
            if (p < PIXELS)
                fetch(stage + channel * PLANE + p / ACROSS * ROW + p % ACROSS, there ? x + (i64)from[i] * c + at : x, there);
        }
        float* weights = stage + IMAGE + channel * K_ROW;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int of = part + half * (K_TILE / 2);
            bool there = is_channel && first + of < k;
            const float* row = there ? w + (i64)(first + of) * TAPS * TAPS * c + at : w;
#pragma unroll
            for (int tap = 0; tap < TAPS * TAPS; tap++)
                fetch(weights + tap * EACH * K_ROW + of, row + (there ? tap * c : 0), there);
        }
        asm volatile("cp.async.commit_group;");
    };

    float sums[8][8] = {};  // pixels, channels
    int chunks = (c + EACH - 1) / EACH;
    bring(0);
    for (int chunk = 0; chunk < chunks; chunk++) {
        if (chunk + 1 < chunks) {
            bring(chunk + 1);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        const float* image = shared + chunk % 2 * STAGE + lane / 4 * ROW + lane % 4 * 8;
        const float* weights = shared + chunk % 2 * STAGE + IMAGE + warp * 8;
#pragma unroll 1
        for (int e = 0; e < EACH; e++) {
#pragma unroll
            for (int dy = 0; dy < TAPS; dy++) {
                float pixel[10];
                const float* row = image + e * PLANE + dy * ROW;
                *(float4*)pixel = *(const float4*)row;
                *(float4*)(pixel + 4) = *(const float4*)(row + 4);
                *(float2*)(pixel + 8) = *(const float2*)(row + 8);
#pragma unroll
                for (int dx = 0; dx < TAPS; dx++) {
                    float weight[8];
                    const float* of_tap = weights + ((dy * TAPS + dx) * EACH + e) * K_ROW;
                    *(float4*)weight = *(const float4*)of_tap;
                    *(float4*)(weight + 4) = *(const float4*)(of_tap + 4);
#pragma unroll
                    for (int i = 0; i < 8; i++)
#pragma unroll
                        for (int j = 0; j < 8; j++) sums[i][j] += pixel[i + dx] * weight[j];
                }
            }
        }
        __syncthreads();
    }

    int at = first + warp * 8, row = tile_y + lane / 4;
    if (at >= k || row >= height) return;
    float added[8] = {};
    if (bias) {
#pragma unroll
        for (int j = 0; j < 8; j++) added[j] = to_float(bias[(by_sample ? n * k : 0) + at + j]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int column = tile_x + lane % 4 * 8 + i;
        if (column >= width) return;
        i64 to = (((i64)(n * height + row) * SCALE + down) * width * SCALE + column * SCALE + right) * k + at;
#pragma unroll
        for (int half = 0; half < 8; half += 4) {
            Vec<float, 4> out, extra;
            if (residual) extra = load<float, 4>(residual + to + half);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float u = sums[i][half + j] + added[half + j];
                out.v[j] = ACT(u) + (residual ? extra.v[j] : 0.0f);
            }
            store<float, 4>(y + to + half, out);
        }
    }
}
