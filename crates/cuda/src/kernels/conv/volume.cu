// Convolutions of few channels, of 3 x 3 x 3 voxels or 3 x 3 pixels with steps of 1 or 2, and transposed ones of 2 x 2 (x 2) with steps
// of 2, by products of single warps: y = act(conv(x) + bias) + residual. Behind the prelude and warps.cu.
//
// A block goes along z: planes of its tile, with the pixels around it, come to a ring in shared memory while the planes before are
// multiplied, so that every voxel comes once for all taps. All weights lie in shared memory in the order in which products take them.
// A warp makes R rows of 16 pixels: what it loads of a row of the image meets the taps of all of its rows. Planar images are planes
// one behind the other, of different tiles.
//
// Options: T; B the type of the bias; C0, C1 channels of the images that are read, which lie one behind the other, multiples of 8, C1=0:
// one image; NF eights of channels that a block makes; KZ, KS taps along z and along the others: 3, or 1; S steps; WX, WY warps
// across and down; R rows of a warp; UP: 0, or 4 or 8: transposed, so many pixels for each, a block makes one of these; BLOCKS of a
// multiprocessor; ACT(x).
//
// Weights are [k][taps][c], those of UP [c][taps][k]. A pixel's channels are UNITS pieces of 16 bytes, which are exchanged, or one more
// where that does not work out, so that 8 pixels beside each other lie in different banks.
//
// conv_volume(p): grid (blocks, tiles of channels x UP), block 32 WX WY, shared WEIGHT_BYTES + SLOTS PLANE.

struct Params {
    const T *x[2], *w;
    const B* bias; // or none
    const T* residual; // or none
    T* y;
    int size[3], out[3], pad[3], k;
    int tiles_x, tiles_y, segments, along, items; // `along`: planes that are made of a segment
};

constexpr int C = C0 + C1, UNITS = C / 8, CHUNKS = (C + 15) / 16, TAPS = KZ * KS * KS;
constexpr bool EXCHANGED = UNITS == 1 || UNITS == 2 || UNITS == 4 || UNITS == 8;
constexpr int PIXEL = (EXCHANGED ? UNITS : UNITS | 1) * 16;
constexpr int THREADS = 32 * WX * WY, TX = 16 * WX, TY = R * WY;
constexpr int PW = (TX - 1) * S + KS, PH = (TY - 1) * S + KS, PLANE = PW * PH * PIXEL;
constexpr int SZ = KZ > 1 ? S : 1, SLOTS = KZ + SZ;
constexpr int WEIGHT_BYTES = TAPS * CHUNKS * NF * 256;

__device__ __forceinline__ u32 piece_at(int pixel, int unit) {
    constexpr int SHIFT = UNITS == 8 ? 0 : UNITS == 4 ? 1 : 2;
    return pixel * PIXEL + (EXCHANGED ? unit ^ (pixel >> SHIFT & (UNITS - 1)) : unit) * 16;
}

struct Item {
    int x, y, z;
    i64 n;
};

__device__ __forceinline__ Item item_at(const Params& p, int item) {
    int column = item / p.segments, row = column / p.tiles_x;
    return {column % p.tiles_x * TX, row % p.tiles_y * TY, item % p.segments * p.along, row / p.tiles_y};
}

// A piece of weights: 8 channels c of a k, or where transposed of two c for 8 channels k, to the words that lanes of products read.
__device__ __forceinline__ void place_weights(const Params& p, u32* to, int first_k, int phase) {
    if (!UP) {
#pragma unroll 4
        for (int i = threadIdx.x; i < NF * 8 * TAPS * UNITS; i += THREADS) {
            int unit = i % UNITS, tap = i / UNITS % TAPS, k = i / UNITS / TAPS;
            uint4 v = {};
            if (first_k + k < p.k) v = *(const uint4*)(p.w + ((i64)(first_k + k) * TAPS + tap) * C + unit * 8);
            u32* words = to + ((tap * CHUNKS + unit / 2) * NF + k / 8) * 64 + k % 8 * 8 + unit % 2;
            words[0] = v.x, words[2] = v.y, words[4] = v.z, words[6] = v.w;
        }
    } else {
        for (int i = threadIdx.x; i < C / 2 * NF; i += THREADS) {
            int j = i % NF, c = i / NF * 2;
            Vec<u16, 8> low = {}, high = {};
            if (first_k + j * 8 < p.k) {
                const u16* from = (const u16*)p.w + ((i64)c * UP + phase) * p.k + first_k + j * 8;
                low = load<u16, 8>(from), high = load<u16, 8>(from + (i64)UP * p.k);
            }
            u32* words = to + (c / 16 * NF + j) * 64 + c % 8 + c / 8 % 2;
#pragma unroll
            for (int e = 0; e < 8; e++) words[e * 8] = low.v[e] | (u32)high.v[e] << 16;
        }
    }
}

// The taps of one column (dx) of a plane, for a run of 16 or the last 8 channels.
template <bool WHOLE> __device__ __forceinline__ void column(float (&acc)[R][NF][4], u32 plane, u32 weights, int first_pixel, int unit) {
    int lane = threadIdx.x & 31;
    u32 b[KS][NF][2];
#pragma unroll
    for (int dy = 0; dy < KS; dy++)
#pragma unroll
        for (int j = 0; j < NF; j++)
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(b[dy][j][0]), "=r"(b[dy][j][1]) : "r"(weights + dy * KS * CHUNKS * NF * 256 + j * 256 + lane * 8));
#pragma unroll
    for (int row = 0; row < (R - 1) * S + KS; row++) {
        u32 a[4], from = plane + piece_at(first_pixel + row * PW, unit);
        if (WHOLE)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from));
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a[0]), "=r"(a[1]) : "r"(from));
#pragma unroll
        for (int dy = 0; dy < KS; dy++) {
            if (row < dy || (row - dy) % S || (row - dy) / S >= R) continue;
#pragma unroll
            for (int j = 0; j < NF; j++) {
                float(&d)[4] = acc[(row - dy) / S][j];
                if (WHOLE) product(T(), d, a, b[dy][j][0], b[dy][j][1]);
                else product_of_8(T(), d, a, b[dy][j][0]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) conv_volume(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    u32 weights = shared_address(shared), ring = weights + WEIGHT_BYTES;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warp_x = warp % WX * 16, warp_y = warp / WX * R;
    int phase = UP ? blockIdx.y % (UP ? UP : 1) : 0, first_k = blockIdx.y / (UP ? UP : 1) * NF * 8;
    place_weights(p, (u32*)shared, first_k, phase);
    float bias[NF][2];
#pragma unroll
    for (int j = 0; j < NF; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int k = first_k + j * 8 + (lane & 3) * 2 + e;
            bias[j][e] = p.bias && k < p.k ? to_float(p.bias[k]) : 0.0f;
        }

    // Planes come in the order in which they are needed, of one item after another.
    int planes = (p.along - 1) * SZ + KZ, mine = (p.items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x, all = mine * planes, loaded = 0;
    auto load_next = [&]() {
        Item at = item_at(p, blockIdx.x + loaded / planes * gridDim.x);
        int z = at.z * SZ + loaded % planes - p.pad[0], left = at.x * S - p.pad[2], top = at.y * S - p.pad[1];
        bool there = z >= 0 && z < p.size[0];
        i64 first = (at.n * p.size[0] + z) * p.size[1];
        u32 to = ring + loaded % SLOTS * PLANE;
#pragma unroll 2
        for (int i = threadIdx.x; i < PW * PH * UNITS; i += THREADS) {
            int unit = i % UNITS, pixel = i / UNITS, sx = left + pixel % PW, sy = top + pixel / PW;
            bool inside = there && sx >= 0 && sx < p.size[2] && sy >= 0 && sy < p.size[1];
            i64 from = (first + sy) * p.size[2] + sx;
            const T* source = C1 && unit * 8 >= C0 ? p.x[1] + from * C1 + unit * 8 - C0 : p.x[0] + from * C0 + unit * 8;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + piece_at(pixel, unit)), "l"(inside ? source : p.x[0]), "r"(inside ? 16 : 0) : "memory");
        }
        loaded++;
    };

    for (int item = 0; item < mine; item++) {
        Item at = item_at(p, blockIdx.x + item * gridDim.x);
        for (int step = 0; step < p.along; step++) {
            int base = item * planes + step * SZ;
            if (loaded < base + KZ) {
                // Of another item: planes that the others may still multiply make room.
                __syncthreads();
                while (loaded < base + KZ) load_next();
            }
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
            while (loaded < base + SLOTS && loaded < all) load_next();
            if (at.z + step >= p.out[0]) continue;

            float acc[R][NF][4] = {};
#pragma unroll 1
            for (int dz = 0; dz < KZ; dz++) {
                u32 plane = ring + (base + dz) % SLOTS * PLANE;
#pragma unroll 1
                for (int chunk = 0; chunk < CHUNKS; chunk++) {
#pragma unroll
                    for (int dx = 0; dx < KS; dx++) {
                        u32 w = weights + ((dz * KS * KS + dx) * CHUNKS + chunk) * NF * 256;
                        int first = warp_y * S * PW + (warp_x + (lane & 15)) * S + dx;
                        if (C % 16 && chunk == CHUNKS - 1) column<false>(acc, plane, w, first, chunk * 2);
                        else if (C >= 16) column<true>(acc, plane, w, first, chunk * 2 + (lane >> 4));
                    }
                }
            }
            auto place = [&](int row, int pixel) -> i64 {
                int x = at.x + warp_x + pixel, y = at.y + warp_y + row, z = at.z + step;
                if (x >= p.out[2] || y >= p.out[1]) return -1;
                i64 to;
                if (!UP) {
                    to = ((at.n * p.out[0] + z) * p.out[1] + y) * p.out[2] + x;
                } else {
                    // An image of planes stays as thick as it is.
                    int deep = UP == 8 ? 2 : 1;
                    i64 line = (at.n * p.out[0] * deep + z * deep + (phase >> 2)) * (2 * p.out[1]) + 2 * y + (phase >> 1 & 1);
                    to = line * (2 * p.out[2]) + 2 * x + (phase & 1);
                }
                return to * p.k + first_k;
            };
            finish<R, NF>(acc, bias, p.residual, p.y, p.k - first_k, place);
        }
    }
}
