// Convolutions by warpgroups, stride 1 or 2: y = act(conv(x) + bias) + residual, and the gradient of their input. Behind half.cu
// and warpgroup.cu.
//
// A block makes 16 rows of 8 MB pixels by BN channels: two warpgroups of 8 rows each, and one that loads. 64 channels (32 of TF32) of the
// pixels and of those around them come to shared memory once, and every tap is a product whose left side begins at another
// pixel of that patch: pixels are rows of 128 bytes, 8 neighbours along x are a group of 8 rows, and groups lie a row of the
// patch apart.
//
// With FP8 image and weights are e4m3, 128 channels a row; sums are multiplied by a scale of each channel, and results and residuals
// have 16 bits. With INT8 the image is of u8 and the weights are of i8, and sums of i32; what the image's zeros add to them is taken off before they
// are scaled (p.offsets). With SIDE=1|2 images of 16 bits and as many pixels, one behind the other, are multiplied by a weight of one pixel and
// added to the scaled sums: turns of 64 of their channels with one tap.
//
// Options: -DKS=1|2|3 pixels of the kernel along a side; -DMB=1|2; -DBN=48|64|96|128; -DSTAGES tiles of weights held;
// -DTRANSPOSED=0|1: weights [rows that are summed over, tap, columns that come out], taps the other way round;
// -DACT=0|1|2|3: nothing, SiLU, ReLU, leaky ReLU of the slope -DSLOPE; -DPATCHES patches held; -DPARTS=1|2 images whose channels lie one behind the other; -DSPLIT=1|2|4 blocks
// that share a tile; -DHELD=0|1; -DWIDE_BIAS=0|1: whether biases are in fp32;
// -DSTEPS=0..4 runs of 32 bytes of channels that every turn has, 0 where they differ; -DROW=64|128 bytes of a row. With KS 2 these are the four phases of a
// convolution on an image of twice the size (phases.cu): y and the residual have four maps, one for each phase, or where
// TRANSPOSED, x has, whose sums add up.
//
// DOWN=1 is stride 2: x has four maps, its pixels of even and odd rows and columns, which meet different taps. With KS 1 the kernel
// has 2 x 2 pixels and none around the image, one tap for each map; with KS 2 it has 3 x 3 and one pixel around the image: along
// each axis odd pixels meet its first and its last, even ones its middle.
//
// Blocks that share a tile are a cluster: each sums over some of the channels, leaves its sums in its shared memory, adds up
// all blocks' for some of the tile's channels, always in the same order, and stores these.
//
// HELD weights, all that a block ever needs, come once; STAGES are then a tile's, and the grid is a multiple of the
// channels' tiles and phases.
//
// Matrix units take of TF32 what they read of fp32, and would round everything towards zero: the three warps beside the one
// that loads round every patch to the nearest before it is used, and weights come rounded (round_weights). Results and
// residuals of fp32 go between registers and the image itself.
//
// conv_warpgroup(x_maps, w_map, y_maps, residual_maps, where there is a side its side_maps and side_w_map, p): block 384; grid at most p.tiles, a block goes on to the next tile;
// where tiles are shared, SPLIT p.tiles.

constexpr int GROUPS = 2;
constexpr int TAPS = KS * KS;
#if defined(FP8) || defined(INT8)
#define EIGHTH 1
constexpr int FACTOR_BYTES = 1;
#else
#define EIGHTH 0
constexpr int FACTOR_BYTES = ELEM_BYTES;
#endif
constexpr int EACH = 32 / FACTOR_BYTES, RUNS = ROW_BYTES / 32, WIDE = RUNS * EACH; // channels of a product; products and channels of a row
constexpr bool ROUNDED = ELEM_BYTES == 4, BOXED = !ROUNDED;
constexpr int ROUNDERS = 3; // warps
constexpr int SOURCES = KS == 2 && TRANSPOSED || DOWN ? 4 : PARTS, RESULTS = KS == 2 && !TRANSPOSED && !DOWN ? 4 : 1;
#ifndef SIDE
#define SIDE 0
#endif
// What a tile's sums are when they come to their end: a side is added to them scaled.
#if SIDE && defined(INT8)
// In the registers of the whole numbers.
typedef float Ended;
__device__ __forceinline__ Sum begun(float x) { return __float_as_int(x); }
__device__ __forceinline__ float ended(Sum x) { return __int_as_float(x); }
#else
typedef Sum Ended;
__device__ __forceinline__ Sum begun(Sum x) { return x; }
__device__ __forceinline__ Sum ended(Sum x) { return x; }
#endif
constexpr int SIDE_WIDE = 64; // channels of a row of the side, whose patches have no pixels around them
static_assert(SIDE == 0 || (FACTOR_BYTES == 1 && KS == 3 && !DOWN && ROW_BYTES == 128), "a side of a convolution of 3 x 3 in 8 bits");
constexpr int PATCH_W = 8 * MB + KS - 1, PATCH_H = 8 * GROUPS + KS - 1;
constexpr int PATCH_BYTES = PATCH_W * PATCH_H * ROW_BYTES;
constexpr int PATCH_STEP = (PATCH_BYTES + 1023) / 1024 * 1024;
constexpr int TILE_BYTES = BN * ROW_BYTES;
// Residuals come, and results wait to be stored, in boxes of 8 x 8 pixels and BOX channels.
constexpr int BOX = SPLIT > 1 ? BN / SPLIT : BN % 64 ? BN : 64, BOXES = SPLIT > 1 ? 1 : BN / BOX;
// What a block stores of a tile: everything, or where tiles are shared, one box of channels.
constexpr int COLUMNS = SPLIT > 1 ? BOX : BN;
constexpr int BOX_BYTES = 64 * BOX * 2, GROUP_OUT = MB * BOXES * BOX_BYTES;
static_assert(SPLIT == 1 || (MB == 1 && BN * 512 <= STAGES * TILE_BYTES), "room for the sums of a shared tile");
static_assert(!TRANSPOSED || BN % 64 == 0, "whole boxes of columns");
static_assert(BOXED || (SPLIT == 1 && !TRANSPOSED), "TF32 of a whole tile");
static_assert(BOXED ? ROW_BYTES == 128 : true, "boxes of 64 channels");
static_assert(!EIGHTH || !TRANSPOSED, "products of 8 bits take no transposed weights");
static_assert(SPLIT == 1 || !HELD, "sums of a shared tile lie where its weights were");
static_assert(!DOWN || (KS < 3 && PARTS == 1 && !TRANSPOSED && !HELD), "a plain convolution of stride 2");
static_assert(PARTS == 1 || (KS != 2 && !TRANSPOSED), "parts of a plain convolution's input");

template <int COUNT> struct Maps {
    TensorMap at[COUNT];
};

struct Params {
    const void* bias; // or none
    const float* scales; // of 8 bits: of each channel's sums
    const int* offsets; // INT8: [16, k], which sums have too much, by the sides of the image at which a pixel lies (Border)
    const void* side_bias; // or none; of the bias's type
    int residual; // whether there is one
    int side[2]; // its channels
    int c[2], k; // channels summed over, of each part, and made
    int tiles_x, tiles_y, tiles_k, tiles;
    int tap_columns, first_column; // of the weights' rows: from tap to tap, and where they begin
    int phase_rows; // of the weights, from phase to phase
    int bias_step; // from sample to sample
    // Where results are not stored in boxes: the images
    float* y;
    const float* added;
    int height, width; // which of phases are those of each
};

// Biases of two channels beside each other.
#if WIDE_BIAS
typedef float2 Biases;
__device__ __forceinline__ float2 both(Biases pair) { return pair; }
#else
typedef u32 Biases;
__device__ __forceinline__ float2 both(Biases pair) { return {low_float(pair), high_float(pair)}; }
#endif

__device__ __forceinline__ u32 rounded(float x) {
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

struct Tile {
    int x, y, n, k, phase;
};

__device__ __forceinline__ Tile tile_at(const Params& p, int tile) {
    int phase = tile / p.tiles_k % RESULTS, rest = tile / p.tiles_k / RESULTS;
    return {rest % p.tiles_x * 8 * MB, rest / p.tiles_x % p.tiles_y * 8 * GROUPS, rest / p.tiles_x / p.tiles_y, tile % p.tiles_k * BN, phase};
}

#ifdef INT8
// Where a thread's pixels lie: of each 8 columns two, one above the other. Pixels past the end are not stored.
struct Border {
    int sides[MB][2]; // bits: at the first row, the last, the first column, the last
    __device__ __forceinline__ Border(const Params& p, const Tile& at, int group, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < MB * 2; i++) {
            int y = at.y + 8 * group + 2 * warp + i % 2, x = at.x + 8 * (i / 2) + (lane >> 2);
            sides[i / 2][i % 2] = (y == 0) | (y == p.height - 1) << 1 | (x == 0) << 2 | (x == p.width - 1) << 3;
        }
    }
    // Of two channels beside each other.
    __device__ __forceinline__ int2 offset(const Params& p, int m, int lower, int k) const {
        return __ldg((const int2*)(p.offsets + sides[m][lower] * p.k + k));
    }
};
#endif

// Sums to shared memory, for the blocks of a cluster, and from that of another block.
__device__ __forceinline__ void store_four(u32 to, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ void store_four(u32 to, int a, int b, int c, int d) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void load_four(u32 from, float (&v)[4]) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_four(u32 from, int (&v)[4]) {
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(from) : "memory");
}

// Which of a map's pixels meet a tap, and the first that they meet; the weights' tap.
__device__ __forceinline__ bool meets(int source, int tap) { return !(DOWN && KS == 2) || ((source >> 1 | tap >> 1) && (source & 1 | tap & 1)); }
__device__ __forceinline__ int first_met(int source) { return DOWN && KS == 2 ? 3 - source : 0; }
__device__ __forceinline__ int weights_tap(int source, int tap) {
    if (!DOWN) return TRANSPOSED ? TAPS - 1 - tap : tap;
    if (KS == 1) return source;
    return (source >> 1 ? 2 * (tap >> 1) : 1) * 3 + (source & 1 ? 2 * (tap & 1) : 1);
}

#if SPLIT > 1
#define TOGETHER __cluster_dims__(SPLIT, 1, 1)
#else
#define TOGETHER
#endif

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// x / (1 + exp(-x)), four by one reciprocal. Below the limit, results are nothing in 16 bits.
__device__ __forceinline__ void silu(float* v) {
    float d[4];
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = 1.f + __expf(fminf(-v[i], 20.f));
    float low = d[0] * d[1], high = d[2] * d[3], all = __fdividef(1.f, low * high), of_low = all * high, of_high = all * low;
    v[0] *= of_low * d[1], v[1] *= of_low * d[0];
    v[2] *= of_high * d[3], v[3] *= of_high * d[2];
}

__device__ __forceinline__ void activate(float* v) {
    if (ACT == 1) silu(v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (ACT == 2) v[i] = v[i] < 0.f ? 0.f : v[i];
#ifdef SLOPE
        if (ACT == 3) v[i] = v[i] > 0.f ? v[i] : SLOPE * v[i];
#endif
    }
}

// Rounds the channels of a patch that are there to the nearest TF32.
__device__ __forceinline__ void round_patch(u32 patch, int channels) {
    constexpr int COUNT = PATCH_BYTES / 16, STEP = 32 * ROUNDERS, BATCH = 4;
    for (int first = threadIdx.x - 128 * GROUPS - 32; first < COUNT; first += BATCH * STEP) {
        // All of a batch are on their way before the first is needed.
        u32 v[BATCH][4];
        bool there[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = first + b * STEP, piece = (i ^ i >> 3) & (ROW_BYTES / 16 - 1);
            there[b] = i < COUNT && piece * 4 < channels;
            if (there[b])
                asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v[b][0]), "=r"(v[b][1]), "=r"(v[b][2]), "=r"(v[b][3]) : "r"(patch + i * 16));
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            u32 at = patch + (first + b * STEP) * 16;
#pragma unroll
            for (int e = 0; e < 4; e++) v[b][e] = rounded(__uint_as_float(v[b][e]));
            if (there[b])
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v[b][0]), "r"(v[b][1]), "r"(v[b][2]), "r"(v[b][3]) : "memory");
        }
    }
}

// Ends a warp's part of a tile. Of 8 channels, four neighbours have two each of two pixels, one above the other: they exchange them, so
// that each has four of one pixel.
__device__ __forceinline__ void store_directly(const Params& p, const Tile& at, Sum (&acc)[MB][BN / 2], const Biases* biases, int group, int warp, int lane) {
    int t = lane & 3, lower = t & 1, first = at.k + (t >> 1) * 4;
    int y = at.y + 8 * group + 2 * warp + lower;
    constexpr int SCALE = RESULTS == 4 ? 2 : 1;
#pragma unroll
    for (int m = 0; m < MB; m++) {
        int x = at.x + 8 * m + (lane >> 2);
        bool inside = y < p.height && x < p.width;
        long long row = ((long long)at.n * p.height + y) * SCALE + (at.phase >> 1);
        long long to = (row * p.width * SCALE + x * SCALE + (at.phase & 1)) * p.k + first;
        constexpr int RUN = BN / 8 % 6 ? 4 : 6;
        float4 extra[RUN];
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            if (j % RUN == 0) {
#pragma unroll
                for (int i = 0; i < RUN; i++) {
                    extra[i] = {};
                    if (p.residual && inside && first + (j + i) * 8 < p.k) extra[i] = *(const float4*)(p.added + to + (j + i) * 8);
                }
            }
            float2 bias = both(biases[j]);
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = acc[m][4 * j + i] + (i & 1 ? bias.y : bias.x);
            activate(v);
            float a = __shfl_xor_sync(~0u, lower ? v[0] : v[2], 1), b = __shfl_xor_sync(~0u, lower ? v[1] : v[3], 1);
            float4 out = lower ? float4{a, b, v[2], v[3]} : float4{v[0], v[1], a, b};
            const float4& more = extra[j % RUN];
            out = {out.x + more.x, out.y + more.y, out.z + more.z, out.w + more.w};
            if (inside && first + j * 8 < p.k) *(float4*)(p.y + to + j * 8) = out;
        }
    }
}

extern "C" __global__ void TOGETHER __launch_bounds__(128 * (GROUPS + 1), 1)
    conv_warpgroup(const __grid_constant__ Maps<SOURCES> x_maps, const __grid_constant__ TensorMap w_map,
                   const __grid_constant__ Maps<RESULTS> y_maps, const __grid_constant__ Maps<RESULTS> residual_maps,
#if SIDE
                   const __grid_constant__ Maps<SIDE> side_maps, const __grid_constant__ TensorMap side_w_map,
#endif
                   const __grid_constant__ Params p) {
    extern __shared__ char raw[];
    __shared__ __align__(8) u64 barriers[2 * (PATCHES + STAGES + GROUPS) + PATCHES];
    u32 patches = (shared_address(raw) + 1023) & ~1023u;
    u32 weights = patches + PATCHES * PATCH_STEP, outs = weights + STAGES * TILE_BYTES;
    u32 patch_full = shared_address(barriers), patch_empty = patch_full + 8 * PATCHES;
    u32 full = patch_empty + 8 * PATCHES, empty = full + 8 * STAGES, out_full = empty + 8 * STAGES, out_empty = out_full + 8 * GROUPS;
    u32 landed = ROUNDED ? out_empty + 8 * GROUPS : patch_full;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PATCHES; i++) barrier_init(patch_full + 8 * i, ROUNDED ? ROUNDERS : 1), barrier_init(patch_empty + 8 * i, 4 * GROUPS);
        if (ROUNDED)
            for (int i = 0; i < PATCHES; i++) barrier_init(landed + 8 * i, 1);
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 4 * GROUPS);
        for (int i = 0; i < GROUPS; i++) barrier_init(out_full + 8 * i, 1), barrier_init(out_empty + 8 * i, 1);
        fence_barriers();
    }
    __syncthreads();
    // Turns take a row's channels of one source each.
    int first_chunks = (p.c[0] + WIDE - 1) / WIDE, turns = PARTS == 2 ? first_chunks + (p.c[1] + WIDE - 1) / WIDE : SOURCES * first_chunks;
    // The side's turns come behind the others, and take as long as one tap.
    int first_side = (p.side[0] + SIDE_WIDE - 1) / SIDE_WIDE, side_turns = SIDE ? first_side + (p.side[1] + SIDE_WIDE - 1) / SIDE_WIDE : 0;
    auto turn_of_share = [&](int share) -> int {
        int each = SIDE ? TAPS : 1, whole = each * turns, at = (whole + side_turns) * share / SPLIT;
        return at < whole ? at / each : turns + at - whole;
    };
    int rank = blockIdx.x % SPLIT, first_turn = turn_of_share(rank), end_turn = turn_of_share(rank + 1);
    int end_main = min(end_turn, turns), first_of_side = max(first_turn, turns);
    int first_tile = blockIdx.x / SPLIT, next_tile = gridDim.x / SPLIT, box_column = SPLIT > 1 ? rank * BOX : 0;
    struct Turn {
        int source, chunk, left;
    };
    auto turn_at = [&](int turn) -> Turn {
        int source = PARTS == 2 ? turn >= first_chunks : turn / first_chunks, chunk = turn - source * first_chunks;
        return {source, chunk, (PARTS == 2 && source ? p.c[1] : p.c[0]) - chunk * WIDE};
    };
    int stage = 0, phase = 0, patch = 0, patch_phase = 0, out_phase = 0;
    auto advance = [&]() {
        if (++stage == STAGES) stage = 0, phase ^= !HELD;
    };
    auto advance_patch = [&]() {
        if (++patch == PATCHES) patch = 0, patch_phase ^= 1;
    };

    if (group == GROUPS) {
        fewer_registers<40>();
        if (ROUNDED && warp > 4 * GROUPS) {
            for (int tile = first_tile; tile < p.tiles; tile += next_tile) {
                for (int turn = first_turn; turn < end_turn; turn++) {
                    barrier_wait(landed + 8 * patch, patch_phase);
                    round_patch(patches + patch * PATCH_STEP, turn_at(turn).left);
                    fence_async();
                    __syncwarp();
                    if (lane == 0) barrier_arrive(patch_full + 8 * patch);
                    advance_patch();
                }
            }
            return;
        }
        if (threadIdx.x != 128 * GROUPS) return;
        for (int tile = first_tile; tile < p.tiles; tile += next_tile) {
            Tile at = tile_at(p, tile);
            for (int turn = first_turn; turn < end_main; turn++) {
                auto [source, chunk, left] = turn_at(turn);
                int which = KS == 2 && !DOWN ? source + at.phase : 0, part_column = PARTS == 2 && source ? p.c[0] : 0;
                // Where the patch begins: its middle, or for a phase the tap that comes first.
                int dy = KS != 2 || DOWN ? -(KS / 2) : TRANSPOSED ? -(which >> 1) : (which >> 1) - 1;
                int dx = KS != 2 || DOWN ? -(KS / 2) : TRANSPOSED ? -(which & 1) : (which & 1) - 1;
                barrier_wait(patch_empty + 8 * patch, patch_phase ^ 1);
                barrier_expect(landed + 8 * patch, PATCH_BYTES);
                copy_box(patches + patch * PATCH_STEP, x_maps.at[source], landed + 8 * patch, chunk * WIDE, at.x + dx, at.y + dy, at.n);
                advance_patch();
                for (int tap = 0; tap < TAPS && !(HELD && tile != first_tile); tap++) {
                    if (!meets(source, tap)) continue;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(full + 8 * stage, TILE_BYTES);
                    u32 to = weights + stage * TILE_BYTES;
                    int row = which * p.phase_rows, column = p.first_column + weights_tap(source, tap) * p.tap_columns;
                    if (TRANSPOSED) {
                        for (int i = 0; i < BN / 64; i++)
                            copy_box(to + i * 64 * ROW_BYTES, w_map, full + 8 * stage, column + at.k + i * 64, row + chunk * 64);
                    } else {
                        copy_box(to, w_map, full + 8 * stage, column + part_column + chunk * WIDE, row + at.k);
                    }
                    advance();
                }
                if (BOXED && p.residual && turn == first_turn) {
                    for (int i = 0; i < GROUPS; i++) {
                        barrier_wait(out_empty + 8 * i, out_phase ^ 1);
                        barrier_expect(out_full + 8 * i, GROUP_OUT);
                        for (int j = 0; j < MB * BOXES; j++)
                            copy_box(outs + i * GROUP_OUT + j * BOX_BYTES, residual_maps.at[at.phase], out_full + 8 * i,
                                     at.k + box_column + j % BOXES * BOX, at.x + j / BOXES * 8, at.y + i * 8, at.n);
                    }
                    out_phase ^= 1;
                }
            }
#if SIDE
            for (int turn = first_of_side; turn < end_turn; turn++) {
                int image = turn - turns >= first_side, chunk = turn - turns - (image ? first_side : 0);
                barrier_wait(patch_empty + 8 * patch, patch_phase ^ 1);
                barrier_expect(patch_full + 8 * patch, 8 * MB * 8 * GROUPS * ROW_BYTES);
                copy_box(patches + patch * PATCH_STEP, side_maps.at[image], patch_full + 8 * patch, chunk * SIDE_WIDE, at.x, at.y, at.n);
                advance_patch();
                if (HELD && tile != first_tile) continue;
                barrier_wait(empty + 8 * stage, phase ^ 1);
                barrier_expect(full + 8 * stage, TILE_BYTES);
                copy_box(weights + stage * TILE_BYTES, side_w_map, full + 8 * stage, (image ? p.side[0] : 0) + chunk * SIDE_WIDE, at.k);
                advance();
            }
#endif
        }
        return;
    }

    more_registers<232>();
    int t = lane & 3;
    bool leader = threadIdx.x % GROUP == 0;
    u32 out = outs + group * GROUP_OUT;
    auto release = [&](u32 barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    // The second warpgroup stays a tap or two behind the first: one computes while the other stores.
    constexpr int START = 5, LEAD = TAPS > 2 ? 2 : 0;
    if (group == 1) sync_threads<2 * GROUP>(START);
    for (int tile = first_tile; tile < p.tiles; tile += next_tile) {
        Tile at = tile_at(p, tile);
        Sum acc[MB][BN / 2];
        int last_stage = -1, last_patch = -1;
        // It is 0 again, but known to be, all addresses of held weights would wait in registers.
        if (HELD) asm volatile("" : "+r"(stage));
        // Of every eight channels the thread ends two.
        Biases biases[COLUMNS / 8];
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            int k = at.k + box_column + j * 8 + t * 2;
            biases[j] = {};
            if (p.bias && k < p.k) biases[j] = ((const Biases*)p.bias)[((long long)at.n * p.bias_step + k) / 2];
        }
        for (int turn = first_turn; turn < end_main; turn++) {
            auto [source, chunk, left] = turn_at(turn);
            int steps = min(RUNS, (left + EACH - 1) / EACH), first_tap = first_met(source);
            barrier_wait(patch_full + 8 * patch, patch_phase);
            u32 corner = patches + patch * PATCH_STEP + 8 * group * PATCH_W * ROW_BYTES;
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++) {
                if (!meets(source, tap)) continue;
                barrier_wait(full + 8 * stage, phase);
                u64 a = describe(corner + (tap / KS * PATCH_W + tap % KS) * ROW_BYTES, PATCH_W * ROW_BYTES);
                u64 b = describe(weights + stage * TILE_BYTES, 8 * ROW_BYTES, TRANSPOSED ? 64 * ROW_BYTES : 16);
                constexpr u64 NEXT = TRANSPOSED ? ALONG_ROWS : ALONG_COLUMNS;
#pragma unroll
                for (int m = 0; m < MB; m++) pin(acc[m]);
                products_begin();
#pragma unroll
                for (int i = 0; i < RUNS; i++)
                    if (STEPS ? i < STEPS : i < steps) {
#pragma unroll
                        for (int m = 0; m < MB; m++)
                            product<BN, 0, TRANSPOSED>(acc[m], a + m * (8 * ROW_BYTES >> 4) + i * ALONG_COLUMNS, b + i * NEXT, turn - first_turn + tap - first_tap + i > 0);
                    }
                products_commit();
                products_wait<1>();
                if (!HELD && last_stage >= 0) release(empty + 8 * last_stage);
                if (tap == first_tap) {
                    if (last_patch >= 0) release(patch_empty + 8 * last_patch);
                    if (BOXED && p.residual && turn == first_turn && leader && tile != first_tile) stores_read(), barrier_arrive(out_empty + 8 * group);
                }
                if (tap == (DOWN ? first_tap : LEAD) && group == 0 && turn == first_turn && tile == first_tile) arrive_threads<2 * GROUP>(START);
                last_stage = stage;
                advance();
            }
            last_patch = patch;
            advance_patch();
        }
#if SIDE
        // No product is under way, so the sums may be changed without products having to wait for each other.
        products_wait<0>();
#pragma unroll
        for (int m = 0; m < MB; m++) pin(acc[m]);
#ifdef INT8
        Border border(p, at, group, warp & 3, lane);
#endif
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            int k = at.k + j * 8 + t * 2;
            float2 scale = k < p.k ? __ldg((const float2*)(p.scales + k)) : float2{0.f, 0.f};
#pragma unroll
            for (int m = 0; m < MB; m++)
#pragma unroll
                for (int lower = 0; lower < 2; lower++) {
                    Sum* two = &acc[m][4 * j + 2 * lower];
#ifdef INT8
                    // Of a shared tile, the first block takes it off.
                    if (k < p.k && (SPLIT == 1 || rank == 0)) {
                        int2 offset = border.offset(p, m, lower, k);
                        two[0] -= offset.x, two[1] -= offset.y;
                    }
#endif
                    two[0] = begun(two[0] * scale.x), two[1] = begun(two[1] * scale.y);
                }
        }
        for (int turn = first_of_side; turn < end_turn; turn++) {
            barrier_wait(patch_full + 8 * patch, patch_phase);
            barrier_wait(full + 8 * stage, phase);
            u64 a = describe(patches + patch * PATCH_STEP + 8 * group * 8 * MB * ROW_BYTES, 8 * MB * ROW_BYTES);
            u64 b = describe(weights + stage * TILE_BYTES);
#pragma unroll
            for (int m = 0; m < MB; m++) pin(acc[m]);
            products_begin();
#pragma unroll
            for (int i = 0; i < RUNS; i++)
#pragma unroll
                for (int m = 0; m < MB; m++)
                    half_product<BN>(acc[m], a + m * (8 * ROW_BYTES >> 4) + i * ALONG_COLUMNS, b + i * ALONG_COLUMNS, turn - first_turn + i > 0);
            products_commit();
            products_wait<1>();
            if (!HELD && last_stage >= 0) release(empty + 8 * last_stage);
            if (last_patch >= 0) release(patch_empty + 8 * last_patch);
            if (group == 0 && turn == first_turn && tile == first_tile) arrive_threads<2 * GROUP>(START);
            last_stage = stage, last_patch = patch;
            advance(), advance_patch();
        }
#endif
        products_wait<0>();
#pragma unroll
        for (int m = 0; m < MB; m++) pin(acc[m]);
        if (!HELD) release(empty + 8 * last_stage);
        release(patch_empty + 8 * last_patch);
        // Of a shared tile, all blocks' sums together.
        Ended shared_sums[SPLIT > 1 ? BOX / 2 : 1];
        if constexpr (SPLIT > 1) {
            // Nobody needs the weights any more.
            sync_threads<2 * GROUP>(START + 2);
            u32 mine = weights + threadIdx.x * 16;
#pragma unroll
            for (int i = 0; i < BN / 8; i++)
                store_four(mine + i * 2 * GROUP * 16, acc[0][4 * i], acc[0][4 * i + 1], acc[0][4 * i + 2], acc[0][4 * i + 3]);
            cluster_arrive();
            cluster_wait();
#pragma unroll
            for (int i = 0; i < BOX / 2; i++) shared_sums[i] = 0;
            u32 wanted = mine + rank * (BOX / 8) * 2 * GROUP * 16;
#pragma unroll
            for (int r = 0; r < SPLIT; r++) {
                u32 there;
                asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(wanted), "r"(r));
#pragma unroll
                for (int i = 0; i < BOX / 8; i++) {
                    Ended v[4];
                    load_four(there + i * 2 * GROUP * 16, v);
#pragma unroll
                    for (int e = 0; e < 4; e++) shared_sums[4 * i + e] += v[e];
                }
            }
            // Blocks stay until the others have read their sums.
            cluster_arrive();
        }

        if constexpr (!BOXED) {
            store_directly(p, at, acc, biases, group, warp & 3, lane);
            continue;
        }
        if (p.residual) {
            barrier_wait(out_full + 8 * group, out_phase);
            out_phase ^= 1;
        } else {
            if (leader) stores_read();
            sync_threads<GROUP>(1 + group);
        }
#if defined(INT8) && !SIDE
        Border border(p, at, group, warp & 3, lane);
#endif
        // Four matrices of 8 pixels by 8 channels at a time: two runs of channels, two of pixels. A lane names a pixel.
        int matrix = lane >> 3, row = lane & 7, pixel = (warp & 3) * 16 + (matrix & 1) * 8 + row;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            float2 low = both(biases[j]), high = both(biases[j + 1]);
            float bias[4] = {low.x, low.y, high.x, high.y}, scale[4] = {1.f, 1.f, 1.f, 1.f};
#if defined(INT8) && !SIDE
            int2 offset[2][MB][2] = {};
#endif
#if EIGHTH
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int k = at.k + box_column + (j + i) * 8 + t * 2;
                if (k >= p.k) continue;
#if SIDE
                if (!p.side_bias) continue;
                float2 more = both(((const Biases*)p.side_bias)[k / 2]);
                bias[2 * i] += more.x, bias[2 * i + 1] += more.y;
#else
                float2 pair = __ldg((const float2*)(p.scales + k));
                scale[2 * i] = pair.x, scale[2 * i + 1] = pair.y;
#ifdef INT8
#pragma unroll
                for (int m = 0; m < 2 * MB; m++) offset[i][m / 2][m % 2] = border.offset(p, m / 2, m % 2, k);
#endif
#endif
            }
#endif
            int piece = j % (BOX / 8) + (matrix >> 1);
            u32 in_box = pixel * BOX * 2 + (BOX % 64 ? piece : piece ^ row) * 16;
#pragma unroll
            for (int m = 0; m < MB; m++) {
                u32 to = out + (m * BOXES + j * 8 / BOX) * BOX_BYTES + in_box;
                // Copies: accumulators that anything but a product changes make products wait for each other.
                float v[8];
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    int of = i / 4 * 2 + i % 2;
                    Ended sum = SPLIT > 1 ? shared_sums[4 * j + i] : ended(acc[m][4 * j + i]);
#if defined(INT8) && !SIDE
                    int2 off = offset[i / 4][m][i / 2 % 2];
                    sum -= i % 2 ? off.y : off.x;
#endif
#if EIGHTH && !SIDE
                    v[i] = sum * scale[of] + bias[of];
#else
                    v[i] = sum + bias[of];
#endif
                }
                activate(v), activate(v + 4);
                if (p.residual) {
                    u32 pairs[4];
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                                 : "r"(to));
#pragma unroll
                    for (int i = 0; i < 4; i++) v[2 * i] += low_float(pairs[i]), v[2 * i + 1] += high_float(pairs[i]);
                }
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(pack(v[0], v[1])),
                             "r"(pack(v[2], v[3])), "r"(pack(v[4], v[5])), "r"(pack(v[6], v[7]))
                             : "memory");
            }
        }
        fence_async();
        sync_threads<GROUP>(1 + group);
        if (leader) {
#pragma unroll
            for (int j = 0; j < MB * BOXES; j++)
                store_box(y_maps.at[at.phase], out + j * BOX_BYTES, at.k + box_column + j % BOXES * BOX, at.x + j / BOXES * 8, at.y + group * 8, at.n);
            stores_commit();
        }
    }
    if (BOXED && leader) stores_done();
    if constexpr (SPLIT > 1) cluster_wait();
}

#ifdef ELEM_TF32
// To the nearest TF32.
extern "C" __global__ void round_weights(const float* from, u32* to, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = rounded(from[i]);
}
#endif
