// A norm by one launch, behind shared.cu with WHOLE, its threads: every block takes a stretch of an image's pixels and keeps it, in shared memory and
// in registers; all blocks run at a time, and each adds up all stretches' sums once the last has written its own. Channels
// are taken in sections of whole groups: while the blocks wait for a section's sums, they are busy with another.
//
// norm_whole(p, barriers, held): grid p.n p.chunks, at most the multiprocessors, nothing beside it; barriers are zeros, 32
// words apart, which it leaves so that the next launch can use them; dynamic shared memory for `held` rows of all channels in
// T, then 2 SPAN floats a thread, 3 for each channel and 3 for each group.
//
// Runs of channels, one behind the other: COUNTS of channels, PARTS that they are of, STARTS in those, SECTIONS that they belong
// to, and KEPTS, how many of its vectors of a run a thread has registers for. RUNS and WAITS are how many runs and sections there
// are. WIDTH is a group's channels, SPAN how many groups V channels touch at the most. SILU says that this is the activation,
// in 16 bits or on a grid; HALVED that it is and results are of 8 bits.

// The first half of a meeting of all blocks, by one thread of each: what was written before is seen behind the second half. Every
// meeting adds half of all numbers, of which the first block brings what the others do not.
__device__ __forceinline__ u32 arrive(u32* barrier) {
    u32 mine = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u, before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(barrier), "r"(mine) : "memory");
    return before;
}
// The second half, with what the first gave.
__device__ __forceinline__ void meet(u32* barrier, u32 before) {
    u32 now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
    while (((before ^ now) & 0x80000000u) == 0);
}

// Starts a copy of 16 bytes to shared memory, which only this thread reads.
__device__ __forceinline__ void fetch(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void fetched_some() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last few of the thread's copies are there.
__device__ __forceinline__ void wait_fetched(int pending) {
    switch (pending) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    case 5: asm volatile("cp.async.wait_group 5;" ::: "memory"); break;
    case 6: asm volatile("cp.async.wait_group 6;" ::: "memory"); break;
    default: asm volatile("cp.async.wait_group 7;" ::: "memory");
    }
}

constexpr int COUNT[RUNS] = {COUNTS}, PART[RUNS] = {PARTS}, START[RUNS] = {STARTS}, SECTION[RUNS] = {SECTIONS}, KEPT[RUNS] = {KEPTS};
__device__ constexpr int most(const int (&of)[RUNS]) {
    int found = 1;
    for (int i = 0; i < RUNS; i++) found = of[i] > found ? of[i] : found;
    return found;
}
// The channel that a run begins at, and the one that a section begins at.
__device__ constexpr int first_channel(int run) {
    int sum = 0;
    for (int i = 0; i < run; i++) sum += COUNT[i];
    return sum;
}
__device__ constexpr int section_start(int section) {
    int sum = 0;
    for (int i = 0; i < RUNS; i++) sum += SECTION[i] < section ? COUNT[i] : 0;
    return sum;
}
constexpr int ALL = first_channel(RUNS), GROUPS = ALL / WIDTH, MOST_KEPT = most(KEPT);
constexpr int LANES = THREADS / 32;    // that add up a group

// The sum over the lanes of a group, in each of them.
__device__ __forceinline__ float lanes_sum(float x) {
    u32 lanes = (LANES == 32 ? ~0u : (1u << LANES % 32) - 1) << (threadIdx.x % 32 / LANES * LANES);
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1) x += __shfl_xor_sync(lanes, x, o);
    return x;
}

// Which of the groups that V channels touch the one at `e` is in, where they begin at `start` of the first.
__device__ __forceinline__ int later_group(int start, int e) {
    int later = 0;
#pragma unroll
    for (int s = 1; s < SPAN; s++) later += start + e >= s * WIDTH;
    return later;
}

// What coefficients are multiplied by for the kind of end that a result has.
#ifdef HALVED
constexpr float SHARE = 0.5f;
#else
constexpr float SHARE = 1.0f;
#endif

// The activation's argument, times SHARE, to the result.
__device__ __forceinline__ void finish(Y* y, float (&u)[V], const Grid& grid) {
#if defined(HALVED)
    store_silu_of_twice(y, u);
#else
#if defined(SILU)
    // Four quotients by one reciprocal. Below the limit, results are nothing in 16 bits.
    static_assert(V % 4 == 0, "vectors of 16 bytes");
#pragma unroll
    for (int e = 0; e < V; e += 4) {
        float d[4];
#pragma unroll
        for (int i = 0; i < 4; i++) d[i] = 1.0f + f_exp(fminf(-u[e + i], 20.0f));
        float low = d[0] * d[1], high = d[2] * d[3], all = f_div(1.0f, low * high), of_low = all * high, of_high = all * low;
        u[e] *= of_low * d[1], u[e + 1] *= of_low * d[0];
        u[e + 2] *= of_high * d[3], u[e + 3] *= of_high * d[2];
    }
#else
#pragma unroll
    for (int e = 0; e < V; e++) u[e] = ACT(u[e]);
#endif
    grid.apply(u);
    store_rounded(y, u);
#endif
}

// Sums of V channels.
struct Sums {
    float one[V] = {}, square[V] = {};
    __device__ __forceinline__ void add(const Vec<T, V>& v, const float (&shift)[V]) {
#pragma unroll
        for (int e = 0; e < V; e++) {
            float d = v.at(e) + shift[e];
            one[e] += d;
            square[e] += d * d;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) norm_whole(const __grid_constant__ Norm p, u32* barriers, int held) {
    extern __shared__ __align__(16) u8 memory[];
    T* kept = (T*)memory;
    float2* staged = (float2*)(kept + held * ALL);     // [SPAN][THREADS]
    float* gains = (float*)(staged + SPAN * THREADS);  // of each channel: what multiplies, what is added, what is added before
    float* offsets = gains + ALL;
    float* biases = offsets + ALL;
    float* stats = biases + ALL;                       // mean and reciprocal deviation of each group
    float* pivots = stats + 2 * GROUPS;
    int chunk = blockIdx.x % p.chunks, n = blockIdx.x / p.chunks;
    i64 from = chunk * p.rows, before = (i64)n * p.s + from;
    int rows = (int)(from + p.rows < p.s ? p.rows : p.s - from), in_memory = rows < held ? rows : held;
    auto source = [&](int run, const Cover& cover) {
        const Part& part = p.part[PART[run]];
        return part.x + before * part.c + START[run] + cover.lane * V;
    };
    // In two halves, so that the first is added up while the second is on its way.
    int half = in_memory / 2;
    auto first_row = [&](int start, const Cover& cover) { return start + (cover.row + cover.rows - start % cover.rows) % cover.rows; };
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        Cover cover(COUNT[i]);
        bool active = cover.row < cover.rows;
        const T* x = source(i, cover);
        T* to = kept + first_channel(i) + cover.lane * V;
        int c = p.part[PART[i]].c;
        if (active) {
#pragma unroll 4
            for (int r = cover.row; r < half; r += cover.rows) fetch(to + r * ALL, x + r * c);
        }
        fetched_some();
        if (active) {
#pragma unroll 4
            for (int r = first_row(half, cover); r < in_memory; r += cover.rows) fetch(to + r * ALL, x + r * c);
        }
        fetched_some();
    }
    for (int k = threadIdx.x; k < ALL; k += THREADS) {
        float gain = p.gamma[k], offset = p.beta[k];
        if (p.scale) {
            i64 at = (i64)n * p.film_row + k;
            float scale = 1.0f + to_float(p.scale[at]);
            gain *= scale;
            offset = offset * scale + to_float(p.shift[at]);
        }
        gains[k] = gain;
        offsets[k] = offset;
        biases[k] = p.bias ? to_float(p.bias[(i64)n * ALL + k]) : 0.0f;
    }
    // All values of a group are taken from its first channel's first pixel, which the result may overwrite later.
    for (int g = threadIdx.x; g < GROUPS; g += THREADS)
        pivots[g] = pivot_of(p, n, g * WIDTH) + (p.bias ? to_float(p.bias[(i64)n * ALL + g * WIDTH]) : 0.0f);
    __syncthreads();

    Vec<T, V> mine[RUNS][MOST_KEPT];
    u32 arrived[WAITS];
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const int count = COUNT[i], first = first_channel(i);
        Cover cover(count);
        if (cover.row < cover.rows) {
            Sums sums;
            // The channels' first group, and where they begin in it.
            int k = first + cover.lane * V, group = k / WIDTH, start = k % WIDTH, c = p.part[PART[i]].c;
            float shift[V];
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = biases[k + e] - pivots[group + later_group(start, e)];
            const T* x = source(i, cover);
#pragma unroll
            for (int j = 0; j < MOST_KEPT; j++) {
                int r = in_memory + cover.row + j * cover.rows;
                if (j < KEPT[i] && r < rows) mine[i][j] = load<T, V>(x + r * c);
            }
#pragma unroll
            for (int j = 0; j < MOST_KEPT; j++)
                if (j < KEPT[i] && in_memory + cover.row + j * cover.rows < rows) sums.add(mine[i][j], shift);
#pragma unroll 4
            for (int r = in_memory + cover.row + KEPT[i] * cover.rows; r < rows; r += cover.rows) sums.add(load<T, V>(x + r * c), shift);
            const T* own = kept + k;
            wait_fetched(2 * (RUNS - i) - 1);
#pragma unroll 4
            for (int r = cover.row; r < half; r += cover.rows) sums.add(load<T, V>(own + r * ALL), shift);
            wait_fetched(2 * (RUNS - i) - 2);
#pragma unroll 4
            for (int r = first_row(half, cover); r < in_memory; r += cover.rows) sums.add(load<T, V>(own + r * ALL), shift);
            float2 of_group[SPAN] = {};
#pragma unroll
            for (int e = 0; e < V; e++)
#pragma unroll
                for (int s = 0; s < SPAN; s++)
                    if (later_group(start, e) == s) of_group[s].x += sums.one[e], of_group[s].y += sums.square[e];
#pragma unroll
            for (int s = 0; s < SPAN; s++) staged[s * THREADS + threadIdx.x] = of_group[s];
        }
        __syncthreads();
        const bool begins = i == 0 || SECTION[i] != SECTION[i - 1], ends = i == RUNS - 1 || SECTION[i] != SECTION[i + 1];
        const int first_group = section_start(SECTION[i]) / WIDTH, end_group = section_start(SECTION[i] + 1) / WIDTH;
        for (int g = first_group + threadIdx.x / LANES; g < end_group; g += THREADS / LANES) {
            int low = g * WIDTH - first, high = low + WIDTH;
            low = low > 0 ? low : 0, high = high < count ? high : count;
            float s0 = 0, s1 = 0;
            if (low < high) {
                int last = (high - 1) / V;
                for (int lane = low / V; lane <= last; lane++) {
                    const float2* of_lane = staged + (g - (first + lane * V) / WIDTH) * THREADS + lane;
                    for (int row = threadIdx.x % LANES; row < cover.rows; row += LANES) {
                        float2 v = of_lane[row * cover.across];
                        s0 += v.x, s1 += v.y;
                    }
                }
            }
            s0 = lanes_sum(s0), s1 = lanes_sum(s1);
            if (threadIdx.x % LANES == 0) {
                // The run before has left its own.
                float* total = stats + 2 * g;
                if (!begins) s0 += total[0], s1 += total[1];
                total[0] = s0, total[1] = s1;
                if (ends) ((float2*)p.partial)[((i64)n * GROUPS + g) * p.chunks + chunk] = make_float2(s0, s1);
            }
        }
        __syncthreads();
        if (ends && threadIdx.x == 0) arrived[SECTION[i]] = arrive(barriers + 32 * SECTION[i]);
    }

#pragma unroll
    for (int section = 0; section < WAITS; section++) {
        if (threadIdx.x == 0) meet(barriers + 32 * section, arrived[section]);
        __syncthreads();
        const int first_group = section_start(section) / WIDTH, end_group = section_start(section + 1) / WIDTH;
        for (int g = first_group + threadIdx.x / LANES; g < end_group; g += THREADS / LANES) {
            float d = 0, dd = 0;
            const float2* partial = (const float2*)p.partial + ((i64)n * GROUPS + g) * p.chunks;
#pragma unroll 9
            for (int i = threadIdx.x % LANES; i < p.chunks; i += LANES) {
                float2 v = __ldcg(partial + i);
                d += v.x;
                dd += v.y;
            }
            d = lanes_sum(d), dd = lanes_sum(dd);
            if (threadIdx.x % LANES == 0) {
                // Values are not far from their pivot: little is lost in fp32.
                float size = (float)p.s * WIDTH, mean = d / size, variance = dd / size - mean * mean;
                float m = mean + pivots[g], rstd = rsqrtf(fmaxf(variance, 0.0f) + p.eps);
                stats[2 * g] = m;
                stats[2 * g + 1] = rstd;
                if (chunk == 0) {
                    p.stats[2 * ((i64)n * GROUPS + g)] = m;
                    p.stats[2 * ((i64)n * GROUPS + g) + 1] = rstd;
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < RUNS; i++) {
            if (SECTION[i] != section) continue;
            Cover cover(COUNT[i]);
            if (cover.row >= cover.rows) continue;
            int k = first_channel(i) + cover.lane * V, group = k / WIDTH, start = k % WIDTH, c = p.part[PART[i]].c;
            float a[V], b[V];
#pragma unroll
            for (int e = 0; e < V; e++) {
                int g = group + later_group(start, e);
                a[e] = SHARE * stats[2 * g + 1] * gains[k + e];
                b[e] = SHARE * offsets[k + e] - (stats[2 * g] - biases[k + e]) * a[e];
            }
            Grid grid(p, k);
            const T* x = source(i, cover);
            Y* y = p.y + before * ALL + k;
            auto write = [&](int r, const Vec<T, V>& v) {
                float u[V];
#pragma unroll
                for (int e = 0; e < V; e++) u[e] = a[e] * v.at(e) + b[e];
                finish(y + r * ALL, u, grid);
            };
#pragma unroll
            for (int j = 0; j < MOST_KEPT; j++) {
                int r = in_memory + cover.row + j * cover.rows;
                if (j < KEPT[i] && r < rows) write(r, mine[i][j]);
            }
            // What was read last is the likeliest to be in the cache.
            for (int r = in_memory + cover.row + KEPT[i] * cover.rows; r < rows; r += cover.rows) write(r, load<T, V>(x + r * c));
            const T* own = kept + k;
#pragma unroll 4
            for (int r = cover.row; r < in_memory; r += cover.rows) write(r, load<T, V>(own + r * ALL));
        }
    }
}
