// Attention backward by warpgroups, bf16 and fp16, heads of 64: dk, dv and dq in one pass over the scores.
//
// attention_delta(o, do_, lse, statistics, turns, heads, sq, o_row, do_row, rows, turn_count)
//   rows = B heads padded with padded = round_up(sq, 128); grid ceil(8 rows / 256), block 256
//   statistics: 2 rows floats: for each pair of queries of a head -lse log2(e) of both, then -rowsum(o do) of both
//   turns: turn_count = rows/128 + 1 ints, zeroed here
// attention_backward(q_map, k_map, v_map, do_map, statistics, turns, sums, dk, dv, heads, sq, sk, dk_row, dv_row, scale)
//   maps: [B, S, row] in boxes of 64 columns and 128 rows; sums: rows * 64 floats
//   grid B heads ceil(sk / 128), of which a head's blocks must fit on the card at the same time; block 384,
//   dynamic shared memory 1024 bytes and those of the list of offsets below
// attention_finish(sums, dq, heads, sq, dq_row, scale, rows)
//   grid ceil(4 rows / 256), block 256
//
// A block owns 128 keys of a head, 64 a warpgroup, and goes over its queries, 128 at a time. Keys are rows of the scores,
// so that p and ds come out as A operands of dv and dk. ds also goes through shared memory to become dq of these queries,
// one step later, so that the two warpgroups need not be at the same place. dq is added to `sums` in an order that is
// the same in every run: blocks start at different queries, and for each tile of queries they take turns in the
// order in which they come by.

constexpr int KEYS = 128, QUERIES = 128; // of a block; at a time
constexpr int KEY_TILE = KEYS * ROW_BYTES, QUERY_TILE = QUERIES * ROW_BYTES, STATISTICS = 8 * QUERIES;
constexpr int SUMS = QUERIES * 64 * 4;
// Offsets in shared memory: k, v, two stages of q and do, two of ds, dq, two of statistics.
constexpr int V_AT = KEY_TILE, Q_AT = 2 * KEY_TILE, DO_AT = Q_AT + 2 * QUERY_TILE, DS_AT = DO_AT + 2 * QUERY_TILE;
constexpr int DS_TILE = 2 * KEY_TILE; // two panels of 64 queries
constexpr int DQ_AT = DS_AT + 2 * DS_TILE, STATISTICS_AT = DQ_AT + SUMS;
constexpr int CONSUMER_WARPS = 8;

extern "C" __global__ void __launch_bounds__(256) attention_delta(const half_t* __restrict__ o, const half_t* __restrict__ do_,
                                                                const float* __restrict__ lse, float* __restrict__ statistics,
                                                                int* __restrict__ turns, int heads, int sq, int o_row, int do_row,
                                                                long long rows, int turn_count) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i < turn_count) turns[i] = 0;
    // Eight threads a row, heads next to each other as in memory.
    int piece = (int)(i & 7);
    i >>= 3;
    int padded = (sq + QUERIES - 1) / QUERIES * QUERIES, h = (int)(i % heads);
    long long b = i / heads / padded;
    int s = (int)(i / heads % padded);
    float sum = 0.f;
    bool real = i < rows && s < sq;
    if (real) {
        uint4 a = *(const uint4*)(o + (b * sq + s) * o_row + h * 64 + piece * 8), g = *(const uint4*)(do_ + (b * sq + s) * do_row + h * 64 + piece * 8);
        u32 as[4] = {a.x, a.y, a.z, a.w}, gs[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            sum = fmaf(low_float(as[j]), low_float(gs[j]), sum);
            sum = fmaf(high_float(as[j]), high_float(gs[j]), sum);
        }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 4);
    if (piece == 0 && i < rows) {
        long long bh = b * heads + h;
        float* to = statistics + (bh * padded + (s & ~1)) * 2 + (s & 1);
        to[0] = real ? -lse[bh * sq + s] * LOG2E : __int_as_float(0xff800000); // past the end no probability is left
        to[2] = -sum;
    }
}

extern "C" __global__ void __launch_bounds__(256) attention_finish(const float4* __restrict__ sums, half_t* __restrict__ dq, int heads, int sq,
                                                                 int dq_row, float scale, long long rows) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows * 4) return;
    // 8 columns of rows g and g + 8 of 16.
    int n = (int)(i & 7), g = (int)(i >> 3 & 7), warp = (int)(i >> 6 & 3), panel = (int)(i >> 8 & 1);
    long long tile = i >> 9;
    const float4* from = sums + tile * (SUMS / 16) + (panel * 8 + n) * GROUP + warp * 32 + g * 4;
    float4 x[4];
#pragma unroll
    for (int t = 0; t < 4; t++) x[t] = from[t];
    int tiles = (sq + QUERIES - 1) / QUERIES;
    long long bh = tile / tiles, b = bh / heads;
    int h = (int)(bh % heads), row = (int)(tile % tiles) * QUERIES + panel * 64 + warp * 16 + g;
    half_t* to = dq + b * sq * dq_row + h * 64 + n * 8;
    if (row < sq)
        *(uint4*)(to + (long long)row * dq_row) = make_uint4(pack(x[0].x * scale, x[0].y * scale), pack(x[1].x * scale, x[1].y * scale),
                                                             pack(x[2].x * scale, x[2].y * scale), pack(x[3].x * scale, x[3].y * scale));
    if (row + 8 < sq)
        *(uint4*)(to + (row + 8ll) * dq_row) = make_uint4(pack(x[0].z * scale, x[0].w * scale), pack(x[1].z * scale, x[1].w * scale),
                                                          pack(x[2].z * scale, x[2].w * scale), pack(x[3].z * scale, x[3].w * scale));
}

__device__ __forceinline__ void store_matrices(u32 address, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ __forceinline__ void store_sums(half_t* to, int row_stride, int row0, int rows, const float (&acc)[32], float factor, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < 8; n++)
            store_pair(to, row_stride, row0 + r * 8 + g, rows, n * 8 + t * 2, acc[4 * n + 2 * r] * factor, acc[4 * n + 2 * r + 1] * factor);
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1) attention_backward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap do_map, const float* __restrict__ statistics, int* turns, float* sums, half_t* __restrict__ dk,
    half_t* __restrict__ dv, int heads, int sq, int sk, int dk_row, int dv_row, float scale) {
    extern __shared__ char raw[];
    __shared__ __align__(8) u64 barriers[16];
    __shared__ int number;
    int blocks = (sk + KEYS - 1) / KEYS, tiles = (sq + QUERIES - 1) / QUERIES;
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    u32 keys_full = shared_address(barriers), q_full = keys_full + 8, do_full = q_full + 16, empty = do_full + 16, ds_full = empty + 16,
        ds_empty = ds_full + 16, dq_full = ds_empty + 16, dq_empty = dq_full + 8;
    if (threadIdx.x == 0) {
        barrier_init(keys_full, 1);
        for (int i = 0; i < 2; i++) {
            barrier_init(q_full + 8 * i, 1);
            barrier_init(do_full + 8 * i, 1);
            barrier_init(empty + 8 * i, CONSUMER_WARPS);
            barrier_init(ds_full + 8 * i, CONSUMER_WARPS);
            barrier_init(ds_empty + 8 * i, CONSUMER_WARPS);
        }
        barrier_init(dq_full, CONSUMER_WARPS);
        barrier_init(dq_empty, 1);
        fence_barriers();
        // Blocks of a head wait for each other: they are numbered as they start, so that those before are under way.
        number = atomicAdd(turns + gridDim.x / blocks * (long long)tiles, 1);
    }
    __syncthreads();

    int bh = number / blocks, block = number % blocks, h = bh % heads;
    long long b = bh / heads;
    int start = (int)((long long)block * tiles / blocks);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    if (warp < 4) {
        fewer_registers<24>();
        if (warp == 0 && lane == 0) {
            barrier_expect(keys_full, 2 * KEY_TILE);
            copy_box(base, k_map, keys_full, h * 64, block * KEYS, (int)b);
            copy_box(base + V_AT, v_map, keys_full, h * 64, block * KEYS, (int)b);
#pragma unroll 1
            for (int i = 0; i < tiles; i++) {
                int tile = start + i < tiles ? start + i : start + i - tiles, stage = i & 1;
                barrier_wait(empty + 8 * stage, (i >> 1) + 1 & 1);
                u32 full = q_full + 8 * stage;
                barrier_expect(full, QUERY_TILE + STATISTICS);
                copy_box(base + Q_AT + stage * QUERY_TILE, q_map, full, h * 64, tile * QUERIES, (int)b);
                copy_bytes(base + STATISTICS_AT + stage * STATISTICS, statistics + ((long long)bh * tiles + tile) * 2 * QUERIES, full, STATISTICS);
                full = do_full + 8 * stage;
                barrier_expect(full, QUERY_TILE);
                copy_box(base + DO_AT + stage * QUERY_TILE, do_map, full, h * 64, tile * QUERIES, (int)b);
            }
        } else if (warp == 1 && lane == 0) {
#pragma unroll 1
            for (int i = 0; i < tiles; i++) {
                int tile = start + i < tiles ? start + i : start + i - tiles;
                // Blocks 0..begun start at this tile or before it, and come by in falling order, the last to start first;
                // then the others, which start behind it and come around, in falling order too.
                int begun = (int)(((tile + 1ll) * blocks + tiles - 1) / tiles);
                int turn = block < begun ? begun - 1 - block : begun + blocks - 1 - block;
                long long at = (long long)bh * tiles + tile;
                float* to = sums + at * (SUMS / 4);
                barrier_wait(dq_full, i & 1);
                if (turn == 0) {
                    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(base + DQ_AT), "n"(SUMS) : "memory");
                } else {
                    int now;
                    do {
                        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turns + at) : "memory");
                    } while (now != turn);
                    fence_async();
                    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(base + DQ_AT),
                                 "n"(SUMS)
                                 : "memory");
                }
                asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                barrier_arrive(dq_empty);
                asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
                fence_async();
                asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turns + at), "r"(turn + 1) : "memory");
            }
        }
    } else {
        more_registers<240>();
        int group = warp / 4 - 1, t = lane & 3;
        int own_row = group * 64 + warp % 4 * 16; // of the block's keys
        int row0 = block * KEYS + own_row;
        float factor = scale * LOG2E;
        float dka[32], dva[32];
#pragma unroll
        for (int i = 0; i < 32; i++) dka[i] = dva[i] = 0.f;
        u64 own_keys = describe(base + group * 64 * ROW_BYTES);
        u64 all_keys = describe(base);
        // Keys past the end must leave dq alone: 2^-lse may be infinite, and infinity times a zero key is not zero.
        bool ragged = (block + 1) * KEYS > sk;
        u32 keep[2] = {row0 + (lane >> 2) < sk ? ~0u : 0u, row0 + 8 + (lane >> 2) < sk ? ~0u : 0u};
        u32 ds_row = own_row + (lane & 15), ds_at = base + DS_AT + ds_row * ROW_BYTES;

        // dq of step i, whose ds both warpgroups have written.
        auto add_queries = [&](int i, auto after_issue) {
            int stage = i & 1;
            barrier_wait(ds_full + 8 * stage, i >> 1 & 1);
            float dqa[32];
            u64 ds = describe(base + DS_AT + stage * DS_TILE + group * KEY_TILE);
            pin(dqa);
            products_begin();
#pragma unroll
            for (int k = 0; k < KEYS / 16; k++) product<64, 1, 1>(dqa, ds + k * ALONG_ROWS, all_keys + k * ALONG_ROWS, k > 0);
            products_commit();
            after_issue();
            products_wait<0>();
            pin(dqa);
            if (lane == 0) barrier_arrive(ds_empty + 8 * stage);
            barrier_wait(dq_empty, i + 1 & 1);
            u32 to = base + DQ_AT + group * (SUMS / 2) + (threadIdx.x % GROUP) * 16;
#pragma unroll
            for (int n = 0; n < 8; n++)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + n * GROUP * 16), "f"(dqa[4 * n]), "f"(dqa[4 * n + 1]),
                             "f"(dqa[4 * n + 2]), "f"(dqa[4 * n + 3])
                             : "memory");
            fence_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(dq_full);
        };

        // The warpgroups take turns with the first two products, so that one takes exponentials while the other multiplies.
        auto turn_wait = [&]() { sync_threads<2 * GROUP>(8 + group); };
        auto turn_pass = [&]() { arrive_threads<2 * GROUP>(9 - group); };
        if (group == 1) turn_pass();

        barrier_wait(keys_full, 0);
        u32 va[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++) ldmatrix(va[k], base + V_AT + ds_row * ROW_BYTES + ((2 * k + (lane >> 4)) ^ ds_row & 7) * 16);
#pragma unroll 1
        for (int i = 0; i < tiles; i++) {
            int stage = i & 1, parity = i >> 1 & 1;
            u32 queries = base + Q_AT + stage * QUERY_TILE, grads = base + DO_AT + stage * QUERY_TILE;
            float s[64], dp[64];
            u32 p[8][4], ds[8][4];
            barrier_wait(q_full + 8 * stage, parity);
            turn_wait();
            pin(s);
            pin(dp);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
                product<QUERIES, 0, 0>(s, own_keys + k * ALONG_COLUMNS, describe(queries) + k * ALONG_COLUMNS, k > 0);
            products_commit();
            barrier_wait(do_full + 8 * stage, parity);
#pragma unroll
            for (int k = 0; k < 4; k++) product<QUERIES, 0>(dp, va[k], describe(grads) + k * ALONG_COLUMNS, k > 0);
            products_commit();
            u32 pairs = base + STATISTICS_AT + stage * STATISTICS + t * 16;
            products_wait<1>();
            pin(s);
#pragma unroll
            for (int n = 0; n < 16; n++) {
                float x, y;
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(pairs + n * 64));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    s[4 * n + 2 * r] = exp2_approx(fmaf(s[4 * n + 2 * r], factor, x));
                    s[4 * n + 2 * r + 1] = exp2_approx(fmaf(s[4 * n + 2 * r + 1], factor, y));
                }
            }
            pin(s);
            products_wait<0>();
            pin(dp);
            turn_pass();
#pragma unroll
            for (int n = 0; n < 16; n++) {
                float x, y;
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(pairs + n * 64 + 8));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    p[n / 2][n % 2 * 2 + r] = pack(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]);
                    ds[n / 2][n % 2 * 2 + r] = pack(s[4 * n + 2 * r] * (dp[4 * n + 2 * r] + x), s[4 * n + 2 * r + 1] * (dp[4 * n + 2 * r + 1] + y));
                }
            }
            if (ragged) {
#pragma unroll
                for (int k = 0; k < 8; k++)
#pragma unroll
                    for (int j = 0; j < 4; j++) ds[k][j] &= keep[j & 1];
            }
            pin(dva);
            pin(dka);
            pin(p);
            pin(ds);
            products_begin();
#pragma unroll
            for (int k = 0; k < 8; k++) product<64, 1>(dva, p[k], describe(grads) + k * ALONG_ROWS, 1);
#pragma unroll
            for (int k = 0; k < 8; k++) product<64, 1>(dka, ds[k], describe(queries) + k * ALONG_ROWS, 1);
            products_commit();
            barrier_wait(ds_empty + 8 * stage, parity ^ 1);
#pragma unroll
            for (int k = 0; k < 8; k++)
                store_matrices(ds_at + stage * DS_TILE + k / 4 * KEY_TILE + ((2 * k + (lane >> 4) & 7) ^ ds_row & 7) * 16, ds[k]);
            fence_async();
            __syncwarp();
            if (lane == 0) barrier_arrive(ds_full + 8 * stage);
            auto release = [&]() {
                products_wait<1>();
                if (lane == 0) barrier_arrive(empty + 8 * stage);
            };
            if (i > 0) {
                add_queries(i - 1, release);
            } else {
                products_wait<0>();
                if (lane == 0) barrier_arrive(empty + 8 * stage);
            }
            pin(dva);
            pin(dka);
            pin(p);
            pin(ds);
        }
        add_queries(tiles - 1, []() {});
        store_sums(dk + b * sk * dk_row + h * 64, dk_row, row0, sk, dka, scale, lane);
        store_sums(dv + b * sk * dv_row + h * 64, dv_row, row0, sk, dva, 1.f, lane);
    }
}
