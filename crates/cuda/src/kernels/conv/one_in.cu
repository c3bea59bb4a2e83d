// Convolutions of 3 x 3 x 3 voxels or 3 x 3 pixels from one channel to a few eights of them, with steps of 1 or 2, by products of single
// warps: the first of a network, bound by writing. Behind the prelude and warps.cu.
//
// Products sum over taps: a row of three is four with the last multiplied by zero, so that a register of two neighbours lies in one word
// of shared memory. Where pixels begin at odd places, it is one of a second patch that is moved by one.
//
// Options: T; B the type of the bias; KZ=1|3; S=1|2; NF eights of channels that are made; TY, TZ rows and planes of a tile, whose rows have 32
// pixels; ACT(x).
//
// conv_one_in(p): grid tiles of all images, block 256.

struct Params {
    const T *x, *w;
    const B* bias; // or none
    const T* residual; // or none
    T* y;
    int size[3], out[3], pad[3], k;
    int tiles_x, tiles_y, tiles_z;
};

constexpr int THREADS = 256, TX = 32, ROWS = KZ * 3, CHUNKS = (ROWS * 4 + 15) / 16, SZ = KZ > 1 ? S : 1;
constexpr int PW = TX * S + 4, PH = (TY - 1) * S + 3, PD = (TZ - 1) * SZ + KZ, COPIES = S == 1 ? 2 : 1;

extern "C" __global__ void __launch_bounds__(THREADS) conv_one_in(const __grid_constant__ Params p) {
    __shared__ __align__(16) u16 patch[COPIES][PD * PH * PW];
    int tile = blockIdx.x, x0 = tile % p.tiles_x * TX, y0 = tile / p.tiles_x % p.tiles_y * TY;
    int rest = tile / p.tiles_x / p.tiles_y, z0 = rest % p.tiles_z * TZ;
    i64 n = rest / p.tiles_z;
    int left = x0 * S - p.pad[2], top = y0 * S - p.pad[1], front = z0 * SZ - p.pad[0];
#pragma unroll 4
    for (int i = threadIdx.x; i < PD * PH * PW; i += THREADS) {
        int sx = left + i % PW, sy = top + i / PW % PH, sz = front + i / PW / PH;
        bool inside = sx >= 0 && sx < p.size[2] && sy >= 0 && sy < p.size[1] && sz >= 0 && sz < p.size[0];
        u16 v = inside ? ((const u16*)p.x)[((n * p.size[0] + sz) * p.size[1] + sy) * p.size[2] + sx] : 0;
        patch[0][i] = v;
        if (COPIES > 1 && i > 0) patch[COPIES - 1][i - 1] = v;
    }
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    // Row t / 2 of four, and two of its pixels; of the other two rows of a chunk likewise.
    u32 b[CHUNKS][NF][2];
    int offset[CHUNKS][2];
    float bias[NF][2];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = chunk * 4 + half * 2 + (t >> 1), dx = (t & 1) * 2;
            bool there = row < ROWS;
            offset[chunk][half] = there ? (row / 3 * PH + row % 3) * PW + dx : -1;
#pragma unroll
            for (int j = 0; j < NF; j++) {
                const u16* w = (const u16*)p.w + (i64)(j * 8 + g) * ROWS * 3 + row * 3 + dx;
                bool real = there && j * 8 + g < p.k;
                u32 low = real ? w[0] : 0, high = real && dx == 0 ? w[1] : 0;
                b[chunk][j][half] = low | high << 16;
            }
        }
#pragma unroll
    for (int j = 0; j < NF; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int k = j * 8 + t * 2 + e;
            bias[j][e] = p.bias && k < p.k ? to_float(p.bias[k]) : 0.0f;
        }
    __syncthreads();

    // What is multiplied by zero may not be infinite.
    u32 seen = t & 1 ? 0xffffu : ~0u;
    int odd = COPIES > 1 ? g & 1 : 0;
    const u16* mine = patch[COPIES > 1 && odd ? COPIES - 1 : 0] - odd;
    for (int line = threadIdx.x >> 5; line < TY * TZ; line += THREADS / 32) {
        int y = line % TY, z = line / TY;
        if (y0 + y >= p.out[1] || z0 + z >= p.out[0]) continue;
        const u16* from = mine + (z * SZ * PH + y * S) * PW + g * S;
        float acc[2][NF][4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                u32 a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int at = offset[chunk][i >> 1];
                    a[i] = at < 0 ? 0 : *(const u32*)(from + at + (half * 16 + (i & 1) * 8) * S) & seen;
                }
#pragma unroll
                for (int j = 0; j < NF; j++) product(T(), acc[half][j], a, b[chunk][j][0], b[chunk][j][1]);
            }
        auto place = [&](int half, int pixel) -> i64 {
            int x = x0 + half * 16 + pixel;
            if (x >= p.out[2]) return -1;
            return (((n * p.out[0] + z0 + z) * p.out[1] + y0 + y) * p.out[2] + x) * p.k;
        };
        finish<2, NF>(acc, bias, p.residual, p.y, p.k, place);
    }
}
