// Gradients of weights by warpgroups: dw[k][tap][c] = sum over pixels of dy[pixel][k] x[pixel + tap][c]. Behind half.cu and
// warpgroup.cu.
//
// A block sums 64 k by 64 c by all taps over a stretch of the pixels, 16 x 8 at a time: a warpgroup for each row of taps, and
// one that loads. x with its surroundings comes once; the taps of a row are parts of one product's columns, which begin one
// pixel apart.
//
// Options: -DKS=2|3 pixels of the kernel along a side; -DSTAGES tiles held. With KS 2 these are the four phases of a convolution
// on an image of twice the size (phases.cu): dy has a map for each.
//
// conv_weight_grad(x_map, dy_maps, p): grid tiles_c tiles_k PHASES splits, block 128 (KS + 1)
// conv_weight_sum(partial, dw, pairs, splits): two elements a thread

constexpr int TAPS = KS * KS, PHASES = KS == 2 ? 4 : 1;
constexpr int PX = 16, PY = 8, PATCH_W = PX + KS - 1, PATCH_H = PY + KS - 1;
constexpr int DY_BYTES = PX * PY * ROW_BYTES, PATCH_BYTES = PATCH_W * PATCH_H * ROW_BYTES;
constexpr int STEP = DY_BYTES + (PATCH_BYTES + 1023) / 1024 * 1024;

struct Maps {
    TensorMap at[PHASES];
};

struct Params {
    float* partial; // [splits][phase][k][tap][c]
    int c, k, tiles_x, tiles_y, tiles, tiles_k, tiles_c, splits;
};

extern "C" __global__ void __launch_bounds__(128 * (KS + 1), 1)
    conv_weight_grad(const __grid_constant__ TensorMap x_map, const __grid_constant__ Maps dy_maps, const __grid_constant__ Params p) {
    extern __shared__ char raw[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    u32 full = shared_address(barriers), empty = full + 8 * STAGES;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * KS);
        fence_barriers();
    }
    __syncthreads();
    int rest = blockIdx.x;
    int c0 = rest % p.tiles_c * 64;
    rest /= p.tiles_c;
    int k0 = rest % p.tiles_k * 64;
    rest /= p.tiles_k;
    int which = rest % PHASES, split = rest / PHASES;
    int first = (long long)p.tiles * split / p.splits, end = (long long)p.tiles * (split + 1) / p.splits;
    int stage = 0, phase = 0;
    auto advance = [&]() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    if (group == KS) {
        fewer_registers<KS == 2 ? 40 : 32>();
        if (threadIdx.x != GROUP * KS) return;
        int dy = KS == 2 ? (which >> 1) - 1 : -1, dx = KS == 2 ? (which & 1) - 1 : -1;
        for (int tile = first; tile < end; tile++) {
            int x = tile % p.tiles_x * PX, y = tile / p.tiles_x % p.tiles_y * PY, n = tile / p.tiles_x / p.tiles_y;
            barrier_wait(empty + 8 * stage, phase ^ 1);
            barrier_expect(full + 8 * stage, DY_BYTES + PATCH_BYTES);
            copy_box(base + stage * STEP, dy_maps.at[which], full + 8 * stage, k0, x, y, n);
            copy_box(base + stage * STEP + DY_BYTES, x_map, full + 8 * stage, c0, x + dx, y + dy, n);
            advance();
        }
        return;
    }
    more_registers<KS == 2 ? 232 : 152>();
    constexpr int N = 64 * KS;
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0.f;
    int last = -1;
    for (int tile = first; tile < end; tile++) {
        barrier_wait(full + 8 * stage, phase);
        u32 dy = base + stage * STEP, patch = dy + DY_BYTES + group * PATCH_W * ROW_BYTES;
        u64 a = describe(dy), b = describe(patch, 1024, ROW_BYTES);
        pin(acc);
        products_begin();
#pragma unroll
        for (int row = 0; row < PY; row++)
            product<N, 1, 1>(acc, a + row * (PX * ROW_BYTES >> 4), b + row * (PATCH_W * ROW_BYTES >> 4), 1);
        products_commit();
        products_wait<1>();
        if (last >= 0 && lane == 0) barrier_arrive(empty + 8 * last);
        last = stage;
        advance();
    }
    products_wait<0>();
    pin(acc);
    int t = lane & 3, g = lane >> 2;
    float* to = p.partial + ((long long)split * PHASES + which) * p.k * TAPS * p.c;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int k = k0 + (warp & 3) * 16 + r * 8 + g, c = c0 + j % 8 * 8 + t * 2, tap = group * KS + j / 8;
            if (k < p.k && c < p.c)
                *(float2*)(to + ((long long)k * TAPS + tap) * p.c + c) = make_float2(acc[4 * j + 2 * r], acc[4 * j + 2 * r + 1]);
        }
}

// dw = the sum of the stretches, in their order.
extern "C" __global__ void __launch_bounds__(256)
    conv_weight_sum(const float* __restrict__ partial, u32* __restrict__ dw, long long pairs, int splits) {
    long long stride = (long long)gridDim.x * 256;
    for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < pairs; i += stride) {
        float2 sum = make_float2(0.f, 0.f);
        for (int s = 0; s < splits; s++) {
            float2 v = *(const float2*)(partial + 2 * (s * pairs + i));
            sum.x += v.x, sum.y += v.y;
        }
        dw[i] = pack(sum.x, sum.y);
    }
}
