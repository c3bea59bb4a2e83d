// A norm by one launch, behind norm.cu: every block takes a stretch of an image's pixels and keeps it, in shared memory and
// in registers; all blocks run at a time, and each adds up all stretches' sums once the last has written its own.
//
// norm_whole(p, barrier, held): grid p.n p.chunks, at most the multiprocessors, nothing beside it; barrier is a zero, which it
// leaves so that the next launch can use it; dynamic shared memory for `held` rows of all channels in T, then 2 SPAN floats a
// thread, 3 for each channel and 3 for each group.
// PARTS is how many parts there are, CHANNELS theirs, WIDTH a group's, SPAN how many groups V channels touch at the most, KEPT
// how many of its vectors of a part a thread has registers for. SILU says that this is the activation, in 16 bits.

// Until all blocks have come here. Every meeting adds half of all numbers, of which the first block brings what others do not.
__device__ __forceinline__ void all_blocks(u32* barrier) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 mine = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u, before, now;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(barrier), "r"(mine) : "memory");
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
        while (((before ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

// Starts a copy of 16 bytes to shared memory, which only this thread reads.
__device__ __forceinline__ void fetch(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void fetched_some() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_fetched() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

constexpr int OF_PART[PARTS] = {CHANNELS};
__device__ constexpr int channels_before(int part) {
    int sum = 0;
    for (int i = 0; i < part; i++) sum += OF_PART[i];
    return sum;
}
constexpr int ALL = channels_before(PARTS), GROUPS = ALL / WIDTH;
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

#ifdef SILU
// Four quotients by one reciprocal. Below the limit, results are nothing in 16 bits.
__device__ __forceinline__ void activate(float (&u)[V]) {
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
}
#else
__device__ __forceinline__ void activate(float (&u)[V]) {
#pragma unroll
    for (int e = 0; e < V; e++) u[e] = ACT(u[e]);
}
#endif

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

extern "C" __global__ void __launch_bounds__(THREADS, 1) norm_whole(const __grid_constant__ Norm p, u32* barrier, int held) {
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
    // In portions, so that the first are added up while the last are on their way.
    constexpr int PORTIONS = 4;
    int portion = (in_memory + PORTIONS - 1) / PORTIONS;
    // Where a portion ends, and the first of its rows that is a thread's.
    auto end_of = [&](int q) { return (q + 1) * portion < in_memory ? (q + 1) * portion : in_memory; };
    auto first_of = [&](int q, const Cover& cover) {
        int start = q * portion;
        return start + (cover.row + cover.rows - start % cover.rows) % cover.rows;
    };
#pragma unroll
    for (int q = 0; q < PORTIONS; q++) {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            Cover cover(OF_PART[i]);
            if (cover.row >= cover.rows) continue;
            const T* x = p.part[i].x + before * OF_PART[i] + cover.lane * V;
            T* to = kept + channels_before(i) + cover.lane * V;
            int end = end_of(q);
#pragma unroll 4
            for (int r = first_of(q, cover); r < end; r += cover.rows) fetch(to + r * ALL, x + r * OF_PART[i]);
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

    Vec<T, V> mine[PARTS][KEPT ? KEPT : 1];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const int count = OF_PART[i], first = channels_before(i);
        Cover cover(count);
        if (cover.row < cover.rows) {
            Sums sums;
            // The channels' first group, and where they begin in it.
            int k = first + cover.lane * V, group = k / WIDTH, start = k % WIDTH;
            float shift[V];
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = biases[k + e] - pivots[group + later_group(start, e)];
            const T* x = p.part[i].x + before * count + cover.lane * V;
#pragma unroll
            for (int j = 0; j < KEPT; j++) {
                int r = in_memory + cover.row + j * cover.rows;
                if (r < rows) mine[i][j] = load<T, V>(x + r * count);
            }
#pragma unroll
            for (int j = 0; j < KEPT; j++)
                if (in_memory + cover.row + j * cover.rows < rows) sums.add(mine[i][j], shift);
#pragma unroll 4
            for (int r = in_memory + cover.row + KEPT * cover.rows; r < rows; r += cover.rows) sums.add(load<T, V>(x + r * count), shift);
            auto add = [&](int from_row, int end) {
#pragma unroll 4
                for (int r = from_row; r < end; r += cover.rows) sums.add(load<T, V>(kept + k + r * ALL), shift);
            };
            // Each thread waits for its own.
            if (i == 0) {
                wait_fetched<3>(), add(cover.row, end_of(0));
                wait_fetched<2>(), add(first_of(1, cover), end_of(1));
                wait_fetched<1>(), add(first_of(2, cover), end_of(2));
                wait_fetched<0>(), add(first_of(3, cover), end_of(3));
            } else {
                wait_fetched<0>(), add(cover.row, in_memory);
            }
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
        for (int g = threadIdx.x / LANES; g < GROUPS; g += THREADS / LANES) {
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
                // The part before has left its own.
                float* total = stats + 2 * g;
                if (i) s0 += total[0], s1 += total[1];
                total[0] = s0, total[1] = s1;
                if (i == PARTS - 1) ((float2*)p.partial)[((i64)n * GROUPS + g) * p.chunks + chunk] = make_float2(s0, s1);
            }
        }
        if (i < PARTS - 1) __syncthreads();
    }

    all_blocks(barrier);
    for (int g = threadIdx.x / LANES; g < GROUPS; g += THREADS / LANES) {
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
    for (int i = 0; i < PARTS; i++) {
        const int count = OF_PART[i];
        Cover cover(count);
        if (cover.row >= cover.rows) continue;
        int k = channels_before(i) + cover.lane * V, group = k / WIDTH, start = k % WIDTH;
        float a[V], b[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            int g = group + later_group(start, e);
            a[e] = stats[2 * g + 1] * gains[k + e];
            b[e] = offsets[k + e] - (stats[2 * g] - biases[k + e]) * a[e];
        }
        const T* x = p.part[i].x + before * count + cover.lane * V;
        Y* y = p.y + before * ALL + k;
        auto write = [&](int r, const Vec<T, V>& v) {
            float u[V];
#pragma unroll
            for (int e = 0; e < V; e++) u[e] = a[e] * v.at(e) + b[e];
            activate(u);
            Vec<Y, V> out;
#pragma unroll
            for (int e = 0; e < V; e++) out.set(e, u[e]);
            store<Y, V>(y + r * ALL, out);
        };
#pragma unroll
        for (int j = 0; j < KEPT; j++) {
            int r = in_memory + cover.row + j * cover.rows;
            if (r < rows) write(r, mine[i][j]);
        }
        // What was read last is the likeliest to be in the cache.
        for (int r = in_memory + cover.row + KEPT * cover.rows; r < rows; r += cover.rows) write(r, load<T, V>(x + r * count));
#pragma unroll 4
        for (int r = cover.row; r < in_memory; r += cover.rows) write(r, load<T, V>(kept + k + r * ALL));
    }
}
