// A norm by one launch that reads a batch once, behind shared.cu with WHOLE, its threads: blocks stay, and sections of the batch
// (SECTION channels, whole groups, of one sample) go through their shared memory one behind the other. Of every section a block takes
// a stretch of pixels. It adds up a section while the next ones are on their way, and writes the one before, whose sums all blocks
// have left in the meantime: nobody waits long.
//
// Blocks are TEAMS of p.chunks each; a team takes every TEAMS-th sample, all sections of it. All blocks run at a time.
//
// norm_stream(p, barriers): grid TEAMS p.chunks, at most the multiprocessors, nothing beside it; a barrier for each section, zeros,
// 32 words apart, which it leaves so that the next launch can use them; dynamic shared memory for SLOTS sections' pixels, then
// 2 SPAN floats a thread.
//
// WIDTH is a group's channels, SPAN how many groups V channels touch at the most. SILU says that this is the activation, in 16 bits
// or fewer.

// The first half of a meeting of a team's blocks, by one thread of each: what was written before is seen behind the second half. Every
// meeting adds half of all numbers, of which the first block brings what the others do not.
__device__ __forceinline__ u32 arrive(u32* barrier, int rank, int blocks) {
    u32 mine = rank == 0 ? 0x80000000u - (blocks - 1) : 1u, before;
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
template <int PENDING> __device__ __forceinline__ void wait_fetched() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

constexpr int LANES = SECTION / V, ROWS = THREADS / LANES, GROUPS = SECTION / WIDTH, WARPS = THREADS / 32;
static_assert(SECTION % V == 0 && SECTION % WIDTH == 0 && SECTION <= THREADS && SLOTS >= 2, "whole vectors and groups");

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) norm_stream(const __grid_constant__ Norm p, u32* barriers) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ float shifts[2][SECTION], pivots[2][GROUPS]; // of the section that is added up, and of the one before
    __shared__ float gains[SECTION], offsets[SECTION];
    __shared__ float means[GROUPS], deviations[GROUPS];
    int slot_vectors = (int)p.rows * LANES;
    Vec<T, V>* slots = (Vec<T, V>*)memory;
    float2* staged = (float2*)(slots + SLOTS * slot_vectors); // [SPAN][THREADS]
    int team = blockIdx.x / p.chunks, chunk = blockIdx.x % p.chunks;
    int in_sample = p.c / SECTION, sections = (p.n - team + TEAMS - 1) / TEAMS * in_sample;
    i64 from = chunk * p.rows;
    int rows = from >= p.s ? 0 : (int)(from + p.rows < p.s ? p.rows : p.s - from);
    int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, warp = threadIdx.x / 32;
    bool active = row < ROWS;
    struct Place {
        int n, k; // the sample, and the first channel
    };
    auto place_of = [&](int section) -> Place { return {team + section / in_sample * TEAMS, section % in_sample * SECTION}; };
    // The section's number in the batch.
    auto number_of = [&](int section) { return (team + section / in_sample * TEAMS) * in_sample + section % in_sample; };
    // The thread's channels of its first row, and the step from row to row.
    auto source = [&](int section, int& step) -> const T* {
        Place at = place_of(section);
        int k = at.k + lane * V, i = 0;
        while (i < 3 && p.part[i + 1].x && k >= p.part[i + 1].first) i++;
        const Part& part = p.part[i];
        step = part.c;
        return part.x + ((i64)at.n * p.s + from) * part.c + k - part.first;
    };
    // What is added to a section's values before they are summed up: all values of a group are taken from its first channel's first
    // pixel, which the result may overwrite later.
    auto look_ahead = [&](int section) {
        Place at = place_of(section);
        int c = threadIdx.x;
        if (c < SECTION) {
            int k = at.k + c, first = k / WIDTH * WIDTH;
            float bias = p.bias ? to_float(p.bias[(i64)at.n * p.c + k]) : 0.0f;
            float pivot = pivot_of(p, at.n, first) + (p.bias ? to_float(p.bias[(i64)at.n * p.c + first]) : 0.0f);
            shifts[section & 1][c] = bias - pivot;
            if (c % WIDTH == 0) pivots[section & 1][c / WIDTH] = pivot;
        }
    };
    for (int section = 0; section < SLOTS; section++) {
        if (section < sections && active) {
            int step;
            const T* x = source(section, step);
#pragma unroll 4
            for (int r = row; r < rows; r += ROWS) fetch(slots + section * slot_vectors + r * LANES + lane, x + (i64)r * step);
        }
        fetched_some();
    }
    look_ahead(0);
    u32 arrived = 0;
    for (int section = 0; section <= sections; section++) {
        int now = section % SLOTS, before = (section + SLOTS - 1) % SLOTS;
        __syncthreads();
        u32 arriving = 0;
        if (section < sections) {
            // The first turns' sections are on their way together; every later turn adds one.
            if (section == 0)
                wait_fetched<SLOTS - 1>();
            else
                wait_fetched<SLOTS - 2>();
            float one[V] = {}, square[V] = {}, shift[V];
            int k = lane * V, group = k / WIDTH, start = k % WIDTH;
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = shifts[section & 1][k + e];
            if (active) {
                const Vec<T, V>* own = slots + now * slot_vectors + lane;
#pragma unroll 4
                for (int r = row; r < rows; r += ROWS) {
                    Vec<T, V> v = own[r * LANES];
#pragma unroll
                    for (int e = 0; e < V; e++) {
                        float d = v.at(e) + shift[e];
                        one[e] += d;
                        square[e] += d * d;
                    }
                }
            }
            float2 of_group[SPAN] = {};
#pragma unroll
            for (int e = 0; e < V; e++)
#pragma unroll
                for (int s = 0; s < SPAN; s++) {
                    bool in = later_group(start, e) == s;
                    of_group[s].x += in ? one[e] : 0.0f;
                    of_group[s].y += in ? square[e] : 0.0f;
                }
#pragma unroll
            for (int s = 0; s < SPAN; s++) staged[s * THREADS + threadIdx.x] = of_group[s];
            __syncthreads();
            for (int g = warp; g < GROUPS; g += WARPS) {
                int first = g * WIDTH / V, last = ((g + 1) * WIDTH - 1) / V;
                float s0 = 0, s1 = 0;
                for (int l = first; l <= last; l++) {
                    const float2* of_lane = staged + (g - l * V / WIDTH) * THREADS + l;
                    for (int r = threadIdx.x % 32; r < ROWS; r += 32) {
                        float2 v = of_lane[r * LANES];
                        s0 += v.x, s1 += v.y;
                    }
                }
                s0 = warp_sum(s0), s1 = warp_sum(s1);
                if (threadIdx.x % 32 == 0) {
                    i64 at = (i64)number_of(section) * GROUPS + g;
                    ((float2*)p.partial)[at * p.chunks + chunk] = make_float2(s0, s1);
                }
            }
            __syncthreads();
            if (threadIdx.x == 0) arriving = arrive(barriers + 32 * number_of(section), chunk, p.chunks);
        }
        if (section > 0) {
            // The section before, whose sums all blocks have left, or are about to.
            Place at = place_of(section - 1);
            float gain = 0, offset = 0, bias = 0;
            if (threadIdx.x < SECTION) {
                int k = at.k + threadIdx.x;
                gain = p.gamma[k], offset = p.beta[k];
                if (p.scale) {
                    i64 film = (i64)at.n * p.film_row + k;
                    float scale = 1.0f + to_float(p.scale[film]);
                    gain *= scale;
                    offset = offset * scale + to_float(p.shift[film]);
                }
                if (p.bias) bias = to_float(p.bias[(i64)at.n * p.c + k]);
            }
            if (threadIdx.x == 0) meet(barriers + 32 * number_of(section - 1), arrived);
            __syncthreads();
            for (int g = warp; g < GROUPS; g += WARPS) {
                float d = 0, dd = 0;
                const float2* partial = (const float2*)p.partial + ((i64)number_of(section - 1) * GROUPS + g) * p.chunks;
#pragma unroll 5
                for (int i = threadIdx.x % 32; i < p.chunks; i += 32) {
                    float2 v = __ldcg(partial + i);
                    d += v.x;
                    dd += v.y;
                }
                d = warp_sum(d), dd = warp_sum(dd);
                if (threadIdx.x % 32 == 0) {
                    // Values are not far from their pivot: little is lost in fp32.
                    float size = (float)p.s * WIDTH, mean = d / size, variance = dd / size - mean * mean;
                    float m = mean + pivots[(section - 1) & 1][g], rstd = rsqrtf(fmaxf(variance, 0.0f) + p.eps);
                    means[g] = m, deviations[g] = rstd;
                    if (chunk == 0) {
                        float* stats = p.stats + 2 * ((i64)at.n * p.groups + at.k / WIDTH + g);
                        stats[0] = m, stats[1] = rstd;
                    }
                }
            }
            __syncthreads();
            if (threadIdx.x < SECTION) {
                int g = threadIdx.x / WIDTH;
                float a = deviations[g] * gain;
                gains[threadIdx.x] = a;
                offsets[threadIdx.x] = offset - (means[g] - bias) * a;
            }
            __syncthreads();
            int next = section - 1 + SLOTS, step = 0;
            bool more = next < sections;
            const T* x = more ? source(next, step) : nullptr;
            if (active) {
                float a[V], b[V];
#pragma unroll
                for (int e = 0; e < V; e++) a[e] = gains[lane * V + e], b[e] = offsets[lane * V + e];
                Vec<T, V>* own = slots + before * slot_vectors + lane;
                Y* y = p.y + ((i64)at.n * p.s + from) * p.c + at.k + lane * V;
#pragma unroll 4
                for (int r = row; r < rows; r += ROWS) {
                    Vec<T, V> v = own[r * LANES];
                    float u[V];
#pragma unroll
                    for (int e = 0; e < V; e++) u[e] = a[e] * v.at(e) + b[e];
                    activate(u);
                    store_rounded(y + (i64)r * p.c, u);
                    // Its place is free for a section to come.
                    if (more) fetch(own + r * LANES, x + (i64)r * step);
                }
            }
            // A group of copies for every turn, so that they can be counted.
            fetched_some();
        }
        arrived = arriving;
        if (section + 1 < sections) look_ahead(section + 1);
    }
}
