// A norm by one launch, behind norm.cu: blocks hold a stretch of an image's pixels each, all of them run at a time, and
// each adds up all stretches' sums once the last has written its own.
//
// norm_whole(p, barrier, held): grid p.n p.chunks, at most the multiprocessors, nothing beside it; barrier is two zeros, which it
// leaves so that the next launch can use them; dynamic shared memory for `held` rows of all channels in T, then
// 2 (THREADS V + c) floats, then 3 for each group.

__device__ __forceinline__ u32 read_now(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Until all blocks have come here.
__device__ __forceinline__ void all_blocks(u32* barrier) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 round = read_now(barrier + 1);
        __threadfence();
        if (atomicAdd(barrier, 1u) == gridDim.x - 1) {
            barrier[0] = 0;
            __threadfence();
            atomicAdd(barrier + 1, 1u);
        } else {
            while (read_now(barrier + 1) == round) {}
        }
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) norm_whole(const __grid_constant__ Norm p, u32* barrier, int held) {
    extern __shared__ __align__(16) u8 memory[];
    T* kept = (T*)memory;
    float* staged = (float*)(kept + (i64)held * p.c);
    float* totals = staged + 2 * THREADS * V;    // of each channel
    float* stats = totals + 2 * p.c;             // mean and reciprocal deviation of each group
    float* pivots = stats + 2 * p.groups;
    int chunk = blockIdx.x % p.chunks, n = blockIdx.x / p.chunks, width = p.c / p.groups;
    i64 from = chunk * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    // All values of a group are taken from its first channel's first pixel, which the result may overwrite later.
    for (int g = threadIdx.x; g < p.groups; g += THREADS)
        pivots[g] = pivot_of(p, n, g * width) + (p.bias ? to_float(p.bias[(i64)n * p.c + g * width]) : 0.0f);
    __syncthreads();

    for (int i = 0; i < 4 && p.part[i].x; i++) {
        const Part& part = p.part[i];
        Cover cover(part.c);
        float sum[V] = {}, squares[V] = {};
        if (cover.row < cover.rows) {
            int k = part.first + cover.lane * V;
            float shift[V];
#pragma unroll
            for (int e = 0; e < V; e++) shift[e] = (p.bias ? to_float(p.bias[(i64)n * p.c + k + e]) : 0.0f) - pivots[(k + e) / width];
            const T* x = part.x + (i64)n * p.s * part.c + cover.lane * V;
#pragma unroll 8
            for (i64 r = from + cover.row; r < to; r += cover.rows) {
                Vec<T, V> v = load<T, V>(x + r * part.c);
                if (r - from < held) store<T, V>(kept + (r - from) * p.c + k, v);
#pragma unroll
                for (int e = 0; e < V; e++) {
                    float d = v.at(e) + shift[e];
                    sum[e] += d;
                    squares[e] += d * d;
                }
            }
#pragma unroll
            for (int e = 0; e < V; e++) {
                int at = (cover.row * cover.across + cover.lane) * V + e;
                staged[2 * at] = sum[e];
                staged[2 * at + 1] = squares[e];
            }
        }
        __syncthreads();
        for (int k = threadIdx.x; k < part.c; k += THREADS) {
            float s0 = 0, s1 = 0;
            for (int r = 0; r < cover.rows; r++) {
                s0 += staged[2 * (r * part.c + k)];
                s1 += staged[2 * (r * part.c + k) + 1];
            }
            totals[2 * (part.first + k)] = s0;
            totals[2 * (part.first + k) + 1] = s1;
        }
        __syncthreads();
    }
    for (int g = threadIdx.x; g < p.groups; g += THREADS) {
        float s0 = 0, s1 = 0;
        for (int k = g * width; k < (g + 1) * width; k++) s0 += totals[2 * k], s1 += totals[2 * k + 1];
        float2* out = (float2*)p.partial + ((i64)n * p.chunks + chunk) * p.groups + g;
        *out = make_float2(s0, s1);
    }

    all_blocks(barrier);
    int lane = threadIdx.x & 31;
    for (int g = threadIdx.x / 32; g < p.groups; g += THREADS / 32) {
        double d = 0, dd = 0;
        for (int i = lane; i < p.chunks; i += 32) {
            float2 v = __ldcg((const float2*)p.partial + ((i64)n * p.chunks + i) * p.groups + g);
            d += v.x;
            dd += v.y;
        }
        for (int o = 16; o > 0; o >>= 1) {
            d += __shfl_xor_sync(0xffffffffu, d, o);
            dd += __shfl_xor_sync(0xffffffffu, dd, o);
        }
        if (lane == 0) {
            double size = (double)p.s * width, mean = d / size, variance = dd / size - mean * mean;
            float m = (float)(mean + (double)pivots[g]);
            float rstd = (float)(1.0 / sqrt((variance > 0.0 ? variance : 0.0) + (double)p.eps));
            stats[2 * g] = m;
            stats[2 * g + 1] = rstd;
            if (chunk == 0) {
                p.stats[2 * ((i64)n * p.groups + g)] = m;
                p.stats[2 * ((i64)n * p.groups + g) + 1] = rstd;
            }
        }
    }
    __syncthreads();

    for (int i = 0; i < 4 && p.part[i].x; i++) {
        const Part& part = p.part[i];
        Cover cover(part.c);
        if (cover.row >= cover.rows) continue;
        int k = part.first + cover.lane * V;
        Coefficients use(p, n, k, stats);
        const T* x = part.x + (i64)n * p.s * part.c + cover.lane * V;
        Y* y = p.y + (i64)n * p.s * p.c + k;
#pragma unroll 4
        for (i64 r = from + cover.row; r < to; r += cover.rows) {
            Vec<T, V> v = r - from < held ? load<T, V>(kept + (r - from) * p.c + k) : load<T, V>(x + r * part.c);
            Vec<Y, V> out;
#pragma unroll
            for (int e = 0; e < V; e++) out.set(e, ACT(use.a[e] * v.at(e) + use.b[e]));
            store<Y, V>(y + r * p.c, out);
        }
    }
}
