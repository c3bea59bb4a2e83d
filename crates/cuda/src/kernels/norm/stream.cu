// A norm by one launch that reads a batch once, behind shared.cu with WHOLE, its threads: blocks stay, and sections of the batch
// (SECTION channels, whole groups, of one sample) go through their shared memory one behind the other. Of every section a block takes
// a stretch of pixels. It adds up a section while the next ones are on their way, and writes the one before, whose sums all blocks
// have left in the meantime: nobody waits long.
//
// Blocks are TEAMS of p.chunks each, at most MOST_CHUNKS, a multiple of 32; a team takes every TEAMS-th sample, all sections of it. All
// blocks run at a time, BLOCKS on a multiprocessor.
//
// norm_stream(p, barriers): grid TEAMS p.chunks, at most BLOCKS for each multiprocessor, nothing beside it; a barrier for each section, zeros,
// 32 words apart, which it leaves so that the next launch can use them; dynamic shared memory for SLOTS sections' pixels, then
// 2 SPAN floats a thread.
//
// WIDTH is a group's channels, SPAN how many groups V channels touch at the most. SILU says that this is the activation, in 16 bits
// or fewer; HALVED that it is and results are of 8 bits.

// A meeting of a team's blocks. Every meeting adds half of all numbers to its barrier, of which the first block brings what the others do
// not: so its highest bit turns when the last has come. Here is what it was before.
__device__ __forceinline__ u32 side_of(const u32* barrier) { return *(const volatile u32*)barrier & 0x80000000u; }
// By one thread of each block: what its block wrote is seen by who has met it.
__device__ __forceinline__ void arrive(u32* barrier, int rank, int blocks) {
    u32 mine = rank == 0 ? 0x80000000u - (blocks - 1) : 1u;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(barrier), "r"(mine) : "memory");
}
__device__ __forceinline__ void meet(const u32* barrier, u32 before) {
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
constexpr int MINE = (GROUPS + WARPS - 1) / WARPS; // groups of a warp
constexpr int BATCH = 4;                          // rows of a thread at a time
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

// What coefficients are multiplied by for the kind of end that a result has.
#ifdef HALVED
constexpr float SHARE = 0.5f;
#else
constexpr float SHARE = 1.0f;
#endif

// The activation's argument, times SHARE, to the result.
__device__ __forceinline__ void finish(Y* y, float (&u)[V]) {
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
    store_rounded(y, u);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) norm_stream(const __grid_constant__ Norm p, u32* barriers) {
    extern __shared__ __align__(16) u8 memory[];
    // Of the section that is added up, and of the one before: what is added to values before they are, what multiplies and is added
    // behind, and the bias.
    __shared__ float shifts[2][SECTION], gains[2][SECTION], offsets[2][SECTION], biases[2][SECTION], pivots[2][GROUPS];
    __shared__ float means[GROUPS], deviations[GROUPS];
    int slot_vectors = (int)p.rows * LANES;
    Vec<T, V>* slots = (Vec<T, V>*)memory;
    float2* staged = (float2*)(slots + SLOTS * slot_vectors); // [SPAN][THREADS]
    int team = blockIdx.x / p.chunks, chunk = blockIdx.x % p.chunks;
    int in_sample = p.c / SECTION, sections = (p.n - team + TEAMS - 1) / TEAMS * in_sample;
    i64 from = chunk * p.rows;
    int rows = from >= p.s ? 0 : (int)(from + p.rows < p.s ? p.rows : p.s - from);
    int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, warp = threadIdx.x / 32;
    if (row >= ROWS) rows = 0;
    struct Place {
        int n, k, number; // the sample, the first channel, the section's number in the batch
    };
    auto place_of = [&](int section) -> Place {
        int n = team + section / in_sample * TEAMS, k = section % in_sample;
        return {n, k * SECTION, n * in_sample + k};
    };
    // The thread's channels of its first row, and the step from row to row.
    auto source = [&](int section, int& step) -> const T* {
        Place at = place_of(section);
        int k = at.k + lane * V, i = 0;
        while (i < 3 && p.part[i + 1].x && k >= p.part[i + 1].first) i++;
        const Part& part = p.part[i];
        step = part.c;
        return part.x + ((i64)at.n * p.s + from) * part.c + k - part.first;
    };
    // A channel of a section: all values of a group are taken from its first channel's first pixel, which the result may overwrite later.
    struct Channel {
        float bias, pivot, gain, offset;
    };
    auto channel_of = [&](int section) -> Channel {
        Channel c = {};
        if (threadIdx.x < SECTION && section < sections) {
            Place at = place_of(section);
            int k = at.k + threadIdx.x, first = k / WIDTH * WIDTH;
            c.gain = p.gamma[k], c.offset = p.beta[k];
            if (p.scale) {
                i64 film = (i64)at.n * p.film_row + k;
                float scale = 1.0f + to_float(p.scale[film]);
                c.gain *= scale;
                c.offset = c.offset * scale + to_float(p.shift[film]);
            }
            c.pivot = pivot_of(p, at.n, first);
            if (p.bias) c.bias = to_float(p.bias[(i64)at.n * p.c + k]), c.pivot += to_float(p.bias[(i64)at.n * p.c + first]);
        }
        return c;
    };
    auto keep = [&](int section, const Channel& c) {
        int half = section & 1, k = threadIdx.x;
        if (k < SECTION) {
            shifts[half][k] = c.bias - c.pivot, gains[half][k] = c.gain, offsets[half][k] = c.offset, biases[half][k] = c.bias;
            if (k % WIDTH == 0) pivots[half][k / WIDTH] = c.pivot;
        }
    };
    for (int section = 0; section < SLOTS; section++) {
        if (section < sections) {
            int step;
            const T* x = source(section, step);
#pragma unroll 4
            for (int r = row; r < rows; r += ROWS) fetch(slots + section * slot_vectors + r * LANES + lane, x + (i64)r * step);
        }
        fetched_some();
    }
    keep(0, channel_of(0));
    // One thread of a block looks at barriers: all would ask one place of memory.
    bool looks = threadIdx.x == 0;
    u32 side_before = 0, side_now = looks && sections > 0 ? side_of(barriers + 32 * place_of(0).number) : 0;
    for (int section = 0; section <= sections; section++) {
        int half = section & 1;
        Place at = place_of(section > 0 ? section - 1 : 0);
        // What the next turn and the end of this one need is asked for before the sums, which take as long.
        Channel ahead = channel_of(section + 1);
        u32 side_ahead = looks && section + 1 < sections ? side_of(barriers + 32 * place_of(section + 1).number) : 0;
        float2 partial[MINE][MOST_CHUNKS / 32];
        if (looks && section > 0) meet(barriers + 32 * at.number, side_before);
        __syncthreads();
        if (section > 0) {
#pragma unroll
            for (int j = 0; j < MINE; j++)
#pragma unroll
                for (int i = 0; i < MOST_CHUNKS / 32; i++) {
                    int g = warp + j * WARPS, c = threadIdx.x % 32 + 32 * i;
                    partial[j][i] = {};
                    if (g < GROUPS && c < p.chunks) partial[j][i] = __ldcg((const float2*)p.partial + ((i64)at.number * GROUPS + g) * p.chunks + c);
                }
        }
        if (section < sections) {
            // The first turns' sections are on their way together; every later turn adds one.
            if (section == 0)
                wait_fetched<SLOTS - 1>();
            else
                wait_fetched<SLOTS - 2>();
            float one[V] = {}, square[V] = {}, shift[V];
            int k = lane * V, group = k / WIDTH, start = k % WIDTH;
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = shifts[half][k + e];
            const Vec<T, V>* own = slots + section % SLOTS * slot_vectors + lane;
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
        }
        if (section > 0) {
#pragma unroll
            for (int j = 0; j < MINE; j++) {
                int g = warp + j * WARPS;
                float d = 0, dd = 0;
#pragma unroll
                for (int i = 0; i < MOST_CHUNKS / 32; i++) d += partial[j][i].x, dd += partial[j][i].y;
                d = warp_sum(d), dd = warp_sum(dd);
                if (g < GROUPS && threadIdx.x % 32 == 0) {
                    // Values are not far from their pivot: little is lost in fp32.
                    float size = (float)p.s * WIDTH, mean = d / size, variance = dd / size - mean * mean;
                    float m = mean + pivots[half ^ 1][g], rstd = rsqrtf(fmaxf(variance, 0.0f) + p.eps);
                    means[g] = m, deviations[g] = rstd;
                    if (chunk == 0) {
                        float* stats = p.stats + 2 * ((i64)at.n * p.groups + at.k / WIDTH + g);
                        stats[0] = m, stats[1] = rstd;
                    }
                }
            }
        }
        __syncthreads();
        if (section < sections) {
            int number = place_of(section).number;
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
                if (threadIdx.x % 32 == 0) ((float2*)p.partial)[((i64)number * GROUPS + g) * p.chunks + chunk] = make_float2(s0, s1);
            }
        }
        float a[V], b[V];
        if (section > 0) {
#pragma unroll
            for (int e = 0; e < V; e++) {
                int k = lane * V + e, g = k / WIDTH;
                a[e] = SHARE * deviations[g] * gains[half ^ 1][k];
                b[e] = SHARE * offsets[half ^ 1][k] - (means[g] - biases[half ^ 1][k]) * a[e];
            }
        }
        __syncthreads();
        if (looks && section < sections) arrive(barriers + 32 * place_of(section).number, chunk, p.chunks);
        // Of the section before nothing is needed any more but its values.
        keep(section + 1, ahead);
        side_before = side_now, side_now = side_ahead;
        if (section > 0) {
            int next = section - 1 + SLOTS, step = 0;
            bool more = next < sections;
            const T* x = more ? source(next, step) : nullptr;
            Vec<T, V>* own = slots + (section - 1) % SLOTS * slot_vectors + lane;
            Y* y = p.y + ((i64)at.n * p.s + from) * p.c + at.k + lane * V;
            for (int first = row; first < rows; first += BATCH * ROWS) {
                Vec<T, V> v[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    if (first + i * ROWS < rows) v[i] = own[(first + i * ROWS) * LANES];
#pragma unroll
                for (int i = 0; i < BATCH; i++) {
                    float u[V];
#pragma unroll
                    for (int e = 0; e < V; e++) u[e] = a[e] * v[i].at(e) + b[e];
                    if (first + i * ROWS < rows) finish(y + (i64)(first + i * ROWS) * p.c, u);
                }
                // Their places are free for a section to come.
                if (more) {
#pragma unroll
                    for (int i = 0; i < BATCH; i++)
                        if (first + i * ROWS < rows) fetch(own + (first + i * ROWS) * LANES, x + (i64)(first + i * ROWS) * step);
                }
            }
            // A group of copies for every turn, so that they can be counted.
            fetched_some();
        }
    }
}
