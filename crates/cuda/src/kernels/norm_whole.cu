// A norm by one launch, behind norm.cu: every block takes a stretch of an image's pixels and keeps it, in shared memory and
// in registers; all blocks run at a time, and each adds up all stretches' sums once the last has written its own.
//
// norm_whole(p, barrier, held, inverse): grid p.n p.chunks, at most the multiprocessors, nothing beside it; barrier is a zero,
// which it leaves so that the next launch can use it; inverse is one over the values of a group; dynamic shared memory for
// `held` rows of all channels in T, then 2 SPAN floats a thread, 3 for each channel and 3 for each group.
// PARTS is how many parts there are, SPAN how many groups V channels touch at the most, KEPT how many of its vectors of a
// part a thread has registers for, LANES how many threads add up a group.

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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    norm_whole(const __grid_constant__ Norm p, u32* barrier, int held, double inverse) {
    extern __shared__ __align__(16) u8 memory[];
    T* kept = (T*)memory;
    float2* staged = (float2*)(kept + (i64)held * p.c);    // [SPAN][THREADS]
    float* gains = (float*)(staged + SPAN * THREADS);      // of each channel: what multiplies, what is added, what is added before
    float* offsets = gains + p.c;
    float* biases = offsets + p.c;
    float* stats = biases + p.c;                           // mean and reciprocal deviation of each group
    float* pivots = stats + 2 * p.groups;
    int chunk = blockIdx.x % p.chunks, n = blockIdx.x / p.chunks, width = p.c / p.groups;
    i64 from = chunk * p.rows;
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
            const Part& part = p.part[i];
            Cover cover(part.c);
            if (cover.row >= cover.rows) continue;
            const T* x = part.x + ((i64)n * p.s + from) * part.c + cover.lane * V;
            T* to = kept + part.first + cover.lane * V;
            int end = end_of(q);
#pragma unroll 4
            for (int r = first_of(q, cover); r < end; r += cover.rows) fetch(to + r * p.c, x + r * part.c);
        }
        fetched_some();
    }
    for (int k = threadIdx.x; k < p.c; k += THREADS) {
        float gain = p.gamma[k], offset = p.beta[k];
        if (p.scale) {
            i64 at = (i64)n * p.film_row + k;
            float scale = 1.0f + to_float(p.scale[at]);
            gain *= scale;
            offset = offset * scale + to_float(p.shift[at]);
        }
        gains[k] = gain;
        offsets[k] = offset;
        biases[k] = p.bias ? to_float(p.bias[(i64)n * p.c + k]) : 0.0f;
    }
    // All values of a group are taken from its first channel's first pixel, which the result may overwrite later.
    for (int g = threadIdx.x; g < p.groups; g += THREADS)
        pivots[g] = pivot_of(p, n, g * width) + (p.bias ? to_float(p.bias[(i64)n * p.c + g * width]) : 0.0f);
    __syncthreads();

    Vec<T, V> mine[PARTS][KEPT];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const Part& part = p.part[i];
        Cover cover(part.c);
        if (cover.row < cover.rows) {
            Sums sums;
            // The channels' first group, and where they begin in it.
            int k = part.first + cover.lane * V, group = k / width, start = k - group * width;
            auto group_of = [&](int e) {
                int s = 0;
#pragma unroll
                for (int b = 1; b < SPAN; b++) s += start + e >= b * width;
                return s;
            };
            float shift[V];
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = biases[k + e] - pivots[group + group_of(e)];
            const T* x = part.x + ((i64)n * p.s + from) * part.c + cover.lane * V;
#pragma unroll
            for (int j = 0; j < KEPT; j++) {
                int r = in_memory + cover.row + j * cover.rows;
                if (r < rows) mine[i][j] = load<T, V>(x + r * part.c);
            }
#pragma unroll
            for (int j = 0; j < KEPT; j++)
                if (in_memory + cover.row + j * cover.rows < rows) sums.add(mine[i][j], shift);
#pragma unroll 4
            for (int r = in_memory + cover.row + KEPT * cover.rows; r < rows; r += cover.rows) sums.add(load<T, V>(x + r * part.c), shift);
            auto add = [&](int first, int end) {
#pragma unroll 4
                for (int r = first; r < end; r += cover.rows) sums.add(load<T, V>(kept + k + r * p.c), shift);
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
                    if (group_of(e) == s) of_group[s].x += sums.one[e], of_group[s].y += sums.square[e];
#pragma unroll
            for (int s = 0; s < SPAN; s++) staged[s * THREADS + threadIdx.x] = of_group[s];
        }
        __syncthreads();
        for (int g = threadIdx.x / LANES; g < p.groups; g += THREADS / LANES) {
            int low = g * width - part.first, high = low + width;
            low = low > 0 ? low : 0, high = high < part.c ? high : part.c;
            float s0 = 0, s1 = 0;
            if (low < high) {
                int last = (high - 1) / V;
                for (int lane = low / V; lane <= last; lane++) {
                    const float2* of_lane = staged + (g - (part.first + lane * V) / width) * THREADS + lane;
                    for (int row = threadIdx.x % LANES; row < cover.rows; row += LANES) {
                        float2 v = of_lane[row * cover.across];
                        s0 += v.x, s1 += v.y;
                    }
                }
            }
#pragma unroll
            for (int o = LANES / 2; o > 0; o >>= 1) {
                s0 += __shfl_xor_sync(0xffffffffu, s0, o);
                s1 += __shfl_xor_sync(0xffffffffu, s1, o);
            }
            if (threadIdx.x % LANES == 0) {
                // The part before has left its own.
                float* total = stats + 2 * g;
                if (i) s0 += total[0], s1 += total[1];
                total[0] = s0, total[1] = s1;
                if (i == PARTS - 1) ((float2*)p.partial)[((i64)n * p.groups + g) * p.chunks + chunk] = make_float2(s0, s1);
            }
        }
        if (i < PARTS - 1) __syncthreads();
    }

    all_blocks(barrier);
    for (int g = threadIdx.x / LANES; g < p.groups; g += THREADS / LANES) {
        double d = 0, dd = 0;
        const float2* partial = (const float2*)p.partial + ((i64)n * p.groups + g) * p.chunks;
#pragma unroll 9
        for (int i = threadIdx.x % LANES; i < p.chunks; i += LANES) {
            float2 v = __ldcg(partial + i);
            d += v.x;
            dd += v.y;
        }
#pragma unroll
        for (int o = LANES / 2; o > 0; o >>= 1) {
            d += __shfl_xor_sync(0xffffffffu, d, o);
            dd += __shfl_xor_sync(0xffffffffu, dd, o);
        }
        if (threadIdx.x % LANES == 0) {
            double mean = d * inverse, variance = dd * inverse - mean * mean;
            float m = (float)(mean + (double)pivots[g]);
            float rstd = rsqrtf((float)((variance > 0.0 ? variance : 0.0) + (double)p.eps));
            stats[2 * g] = m;
            stats[2 * g + 1] = rstd;
            if (chunk == 0) {
                p.stats[2 * ((i64)n * p.groups + g)] = m;
                p.stats[2 * ((i64)n * p.groups + g) + 1] = rstd;
            }
        }
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const Part& part = p.part[i];
        Cover cover(part.c);
        if (cover.row >= cover.rows) continue;
        int k = part.first + cover.lane * V, group = k / width, start = k - group * width;
        float a[V], b[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            int g = group;
#pragma unroll
            for (int s = 1; s < SPAN; s++) g += start + e >= s * width;
            a[e] = stats[2 * g + 1] * gains[k + e];
            b[e] = offsets[k + e] - (stats[2 * g] - biases[k + e]) * a[e];
        }
        const T* x = part.x + ((i64)n * p.s + from) * part.c + cover.lane * V;
        Y* y = p.y + ((i64)n * p.s + from) * p.c + k;
        auto write = [&](int r, const Vec<T, V>& v) {
            Vec<Y, V> out;
#pragma unroll
            for (int e = 0; e < V; e++) out.set(e, ACT(a[e] * v.at(e) + b[e]));
            store<Y, V>(y + r * p.c, out);
        };
#pragma unroll
        for (int j = 0; j < KEPT; j++) {
            int r = in_memory + cover.row + j * cover.rows;
            if (r < rows) write(r, mine[i][j]);
        }
        // What was read last is the likeliest to be in the cache.
        for (int r = in_memory + cover.row + KEPT * cover.rows; r < rows; r += cover.rows) write(r, load<T, V>(x + r * part.c));
#pragma unroll 2
        for (int r = cover.row; r < in_memory; r += cover.rows) write(r, load<T, V>(kept + k + r * p.c));
    }
}
