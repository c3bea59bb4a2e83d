// Attention forward by warpgroups, bf16 and fp16, heads of 64, scale > 0.
//
// attention_forward(k_map, v_map, q, o, lse, heads, sq, sk, q_row, o_row, scale, tiles)
//   k_map, v_map: [B, sk, row] in boxes of 64 columns and 128 rows; tiles = B heads ceil(sq / (64 FWD_GROUPS))
//   grid at most tiles: a block goes on to the next tile; block 128 FWD_GROUPS,
//   dynamic shared memory 1024 + FWD_STAGES 32768 + FWD_GROUPS 8192 bytes
// Options besides the prelude's: -DFWD_GROUPS (warpgroups, 64 queries each), -DFWD_STAGES (tiles of keys and values held, 4
// or more), -DFWD_AHEAD=0|1 (whether the scores of a tile are asked for before the last tile's values are added: fewer
// waits, and more registers than four warpgroups have).
//
// Warpgroups take turns with the matrix unit: each takes exponentials while the others have their products. Left to
// themselves they fall into step, and all wait for the same unit at a time.
//
// The exponentials' base is not each row's largest score but one at most 2^8 below it: it moves, and with it the sums
// so far, only when a tile surpasses it by more. Nothing else depends on it.

constexpr int FWD_THREADS = GROUP * FWD_GROUPS;
constexpr int LEAD = 2; // tiles of keys asked for before they are used
constexpr int KEYS = 128; // at a time
constexpr int TILE = KEYS * ROW_BYTES;
constexpr float SLACK = 8.f;
constexpr u32 NEG_INF = 0xff800000u;
constexpr int TURN = 8; // the first of the barriers for turns

extern "C" __global__ void __launch_bounds__(FWD_THREADS, 1) attention_forward(
    const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const half_t* __restrict__ q, half_t* __restrict__ o,
    float* __restrict__ lse, int heads, int sq, int sk, int q_row, int o_row, float scale, int tiles) {
    extern __shared__ char raw[];
    __shared__ __align__(8) u64 barriers[2 * FWD_STAGES];
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    u32 full = shared_address(barriers), empty = full + 8 * FWD_STAGES;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < FWD_STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, 4 * FWD_GROUPS);
        }
        fence_barriers();
    }
    __syncthreads();

    int query_tiles = (sq + 64 * FWD_GROUPS - 1) / (64 * FWD_GROUPS);
    int stage = 0, phase = 0; // of the tile of keys at hand
    auto advance = [&]() {
        if (++stage == FWD_STAGES) stage = 0, phase ^= 1;
    };

    // One thread loads; what it knows lies in shared memory, where it takes no registers.
    __shared__ volatile int next[6]; // stage, phase, row, tile, column, batch
    auto load = [&]() {
        if (threadIdx.x != 0) return;
        int tile = next[3];
        if (tile >= tiles) return;
        int stage = next[0], phase = next[1], row = next[2], column = next[4], batch = next[5];
        barrier_wait(empty + 8 * stage, phase ^ 1);
        u32 to = base + stage * 2 * TILE;
        barrier_expect(full + 8 * stage, 2 * TILE);
        copy_box(to, k_map, full + 8 * stage, column, row, batch);
        copy_box(to + TILE, v_map, full + 8 * stage, column, row, batch);
        bool around = stage == FWD_STAGES - 1;
        next[0] = around ? 0 : stage + 1;
        next[1] = around ? phase ^ 1 : phase;
        row += KEYS;
        if (row >= sk) {
            row = 0;
            tile += gridDim.x;
            int bh = tile / query_tiles;
            next[3] = tile, next[4] = bh % heads * 64, next[5] = bh / heads;
        }
        next[2] = row;
    };
    if (threadIdx.x == 0) {
        int bh = blockIdx.x / query_tiles;
        next[0] = next[1] = next[2] = 0;
        next[3] = blockIdx.x, next[4] = bh % heads * 64, next[5] = bh / heads;
        for (int i = 0; i < LEAD; i++) load();
    }
    __syncwarp();

    auto turn_wait = [&]() {
        if (FWD_GROUPS > 1) sync_threads<2 * GROUP>(TURN + group);
    };
    auto turn_pass = [&]() {
        if (FWD_GROUPS > 1) arrive_threads<2 * GROUP>(TURN + (group + 1 == FWD_GROUPS ? 0 : group + 1));
    };
    if (group == FWD_GROUPS - 1) turn_pass();

    int t = lane & 3;
    float factor = scale * LOG2E;
    u32 own_queries = base + FWD_STAGES * 2 * TILE + group * 64 * ROW_BYTES;
    u64 queries = describe(own_queries);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int bh = tile / query_tiles, row0 = tile % query_tiles * 64 * FWD_GROUPS + group * 64, h = bh % heads;
        long long b = bh / heads;
        sync_threads<GROUP>(1 + group); // all products with the last queries are done
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i * 16 + threadIdx.x % GROUP / 8, piece = threadIdx.x & 7;
            uint4 x = make_uint4(0, 0, 0, 0);
            if (row0 + row < sq) x = *(const uint4*)(q + (b * sq + row0 + row) * q_row + h * 64 + piece * 8);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(own_queries + row * ROW_BYTES + (piece ^ row & 7) * 16), "r"(x.x),
                         "r"(x.y), "r"(x.z), "r"(x.w)
                         : "memory");
        }
        fence_async();
        sync_threads<GROUP>(1 + group);

        float acc[32], sum[2] = {0.f, 0.f}, top[2] = {__int_as_float(NEG_INF), __int_as_float(NEG_INF)}, shrink[2];
        float s[KEYS / 2];
        u32 p[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i] = 0.f;

        auto scores = [&](int stage) {
            u64 keys = describe(base + stage * 2 * TILE);
            pin(s);
            products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++) product<KEYS, 0, 0>(s, queries + i * ALONG_COLUMNS, keys + i * ALONG_COLUMNS, i > 0);
            products_commit();
        };
        auto add_values = [&](int stage) {
            u64 values = describe(base + stage * 2 * TILE + TILE);
            pin(acc);
            pin(p);
            products_begin();
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++) product<64, 1>(acc, p[i], values + i * ALONG_ROWS, 1);
            products_commit();
        };
        // s becomes exponentials; true where the base has moved and the sums so far are to be shrunk.
        auto exponentials = [&](int left) {
            if (left < KEYS) {
#pragma unroll
                for (int i = 0; i < KEYS / 2; i++)
                    if (i / 4 * 8 + t * 2 + (i & 1) >= left) s[i] = __int_as_float(NEG_INF);
            }
            float best[2] = {fmaxf(s[0], s[1]), fmaxf(s[2], s[3])};
#pragma unroll
            for (int i = 4; i < KEYS / 2; i += 4) {
                best[0] = fmaxf(best[0], fmaxf(s[i], s[i + 1]));
                best[1] = fmaxf(best[1], fmaxf(s[i + 2], s[i + 3]));
            }
            bool moved = __any_sync(~0u, best[0] * factor > top[0] + SLACK || best[1] * factor > top[1] + SLACK);
            if (moved) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 1));
                    best[r] = fmaxf(best[r], __shfl_xor_sync(~0u, best[r], 2));
                    best[r] = fmaxf(best[r] * factor, top[r]);
                    shrink[r] = exp2_approx(top[r] - best[r]);
                    top[r] = best[r];
                    sum[r] *= shrink[r];
                }
            }
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) s[i] = exp2_approx(fmaf(s[i], factor, -top[i >> 1 & 1]));
#pragma unroll
            for (int i = 0; i < KEYS / 2; i += 4) {
                sum[0] += s[i] + s[i + 1];
                sum[1] += s[i + 2] + s[i + 3];
            }
            return moved;
        };
        auto shrink_sums = [&]() {
#pragma unroll
            for (int i = 0; i < 32; i++) acc[i] *= shrink[i >> 1 & 1];
        };
        auto round = [&]() {
#pragma unroll
            for (int i = 0; i < KEYS / 16; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) p[i][j] = pack(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
        };
        auto release = [&](int stage) {
            if (lane == 0) barrier_arrive(empty + 8 * stage);
        };

        barrier_wait(full + 8 * stage, phase);
        scores(stage);
        load();
        __syncwarp();
        products_wait<0>();
        pin(s);
        exponentials(sk);
        round();
#pragma unroll 1
        for (int left = sk - KEYS; left > 0; left -= KEYS) {
            int last = stage;
            advance();
            barrier_wait(full + 8 * stage, phase);
            turn_wait();
            if (FWD_AHEAD) {
                scores(stage);
                add_values(last);
                load();
                __syncwarp();
                products_wait<1>();
                pin(s);
                turn_pass();
                bool moved = exponentials(left);
                hold(sum[0] + sum[1], base);
                products_wait<0>();
                pin(acc);
                pin(p);
                release(last);
                if (moved) shrink_sums();
            } else {
                add_values(last);
                products_wait<0>();
                pin(acc);
                pin(p);
                release(last);
                scores(stage);
                load();
                __syncwarp();
                products_wait<0>();
                pin(s);
                turn_pass();
                if (exponentials(left)) shrink_sums();
            }
            round();
        }
        add_values(stage);
        products_wait<0>();
        pin(acc);
        release(stage);
        advance();
        half_t* out = o + b * sq * o_row + h * 64;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float total = sum[r];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            float inverse = 1.f / total;
            int row = row0 + warp % 4 * 16 + r * 8 + (lane >> 2);
#pragma unroll
            for (int n = 0; n < 8; n++) store_pair(out, o_row, row, sq, n * 8 + t * 2, acc[4 * n + 2 * r] * inverse, acc[4 * n + 2 * r + 1] * inverse);
            if (t == 0 && row < sq) lse[(long long)bh * sq + row] = (top[r] + log2_approx(total)) * LN2;
        }
    }
}
