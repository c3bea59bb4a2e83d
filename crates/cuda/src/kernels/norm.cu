// Group norm, its statistics and its gradient, on x seen as [N, S, C] in up to four parts along C.
//
// T is the type of x (and dx), Y of y and dy, F of FiLM's scale and shift, B of the bias; V channels are moved
// together. GRAD, SLAB and WHOLE (norm_whole.cu) say which of the kernels are wanted, as compiling all takes long. With DBIAS the
// gradient also sums dx over each sample's pixels.
// Everything is done per (sample, channel): a norm is then y = act(a x + b) with two coefficients for each,
// and its gradient dx = p du + q x + r. Blocks take a stretch of pixels and all channels of one part;
// stretches' sums go through memory and are added in a fixed order.

struct Part {
    const T* x;
    const T* addend;
    T* dx;
    int c;
    int first;
};

struct Norm {
    Part part[4];
    const B* bias;           // [N, C], added to x before everything else; or null
    const float* gamma;
    const float* beta;
    const F* scale;          // [N, C] or null
    const F* shift;
    float* stats;            // [N, G, 2]
    Y* y;
    const Y* dy;
    float* partial;          // [N, chunks, C, SUMS], of statistics [N, chunks, C, 2]
    float* sums;             // [N, C, SUMS]
    float* groups_sums;      // [N, G, 2]
    float* dgamma;
    float* dbeta;
    float* dscale;
    float* dshift;
    float* dbias;            // [N, C]: sums of dx
    i64 s;
    int n;
    int c;
    int groups;
    int chunks;
    i64 rows;                // pixels of a chunk
    float eps;
    int film_row;
};

#ifdef WHOLE
#define THREADS WHOLE
#else
#define THREADS 256
#endif
#define AT_ONCE 4    // rows of a gradient's thread whose loads are under way together
#ifdef DBIAS
#define SUMS 3    // of du, du xhat and xhat
#else
#define SUMS 2
#endif

// How a block's threads cover pixels and channels of a part.
struct Cover {
    int across, rows, lane, row;
    __device__ __forceinline__ Cover(int c) {
        int vectors = c / V;
        across = vectors < THREADS ? vectors : THREADS;
        rows = THREADS / across;
        lane = threadIdx.x % across;
        row = threadIdx.x / across;
    }
};

// A thread's rows of a stretch, one in every `stride`.
struct Rows {
    i64 first, last;
    int count;
    __device__ __forceinline__ Rows(i64 from, i64 to, int stride) {
        count = from < to ? (int)((to - from + stride - 1) / stride) : 0;
        first = from;
        last = count > 0 ? from + (i64)(count - 1) * stride : from;
    }
};

// The coefficients of V channels.
struct Coefficients {
    float a[V], b[V];
    __device__ __forceinline__ Coefficients(const Norm& p, int n, int c) : Coefficients(p, n, c, p.stats + 2 * (i64)n * p.groups) {}
    // With a sample's statistics that lie elsewhere.
    __device__ __forceinline__ Coefficients(const Norm& p, int n, int c, const float* stats) {
        int width = p.c / p.groups;
#pragma unroll
        for (int i = 0; i < V; i++) {
            int k = c + i;
            const float* st = stats + 2 * (k / width);
            float mean = st[0], rstd = st[1];
            float g = p.gamma[k], h = p.beta[k];
            if (p.scale) {
                i64 at = (i64)n * p.film_row + k;
                float gain = 1.0f + to_float(p.scale[at]);
                g *= gain;
                h = h * gain + to_float(p.shift[at]);
            }
            if (p.bias) mean -= to_float(p.bias[(i64)n * p.c + k]);
            a[i] = rstd * g;
            b[i] = h - mean * a[i];
        }
    }
};

#ifndef GRAD
// The first pixel's value of a channel of any part.
__device__ __forceinline__ float pivot_of(const Norm& p, int n, int k) {
    int i = 0;
    while (i < 3 && p.part[i + 1].x && k >= p.part[i + 1].first) i++;
    const Part& part = p.part[i];
    return to_float(part.x[(i64)n * p.s * part.c + k - part.first]);
}

#else
// dgamma and dbeta of 32 channels: sums over samples.
__device__ __forceinline__ void affine_gradient(const Norm& p, int channels) {
    __shared__ float reduced[8][33][2];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32, k = channels * 32 + lane;
    float s0 = 0, s1 = 0;
    if (k < p.c) {
        for (int n = row; n < p.n; n += 8) {
            i64 at = (i64)n * p.c + k;
            float gain = p.scale ? 1.0f + to_float(p.scale[(i64)n * p.film_row + k]) : 1.0f;
            s0 += gain * p.sums[SUMS * at];
            s1 += gain * p.sums[SUMS * at + 1];
        }
    }
    reduced[row][lane][0] = s0;
    reduced[row][lane][1] = s1;
    __syncthreads();
    if (row == 0 && k < p.c) {
        s0 = s1 = 0;
        for (int r = 0; r < 8; r++) {
            s0 += reduced[r][lane][0];
            s1 += reduced[r][lane][1];
        }
        p.dbeta[k] = s0;
        p.dgamma[k] = s1;
    }
}

#endif

#if !defined(SLAB) && !defined(GRAD) && !defined(WHOLE)
// Sums of x - x[first pixel] and of its square, for each channel of a stretch of pixels.
extern "C" __global__ void __launch_bounds__(THREADS) norm_partial(const __grid_constant__ Norm p) {
    __shared__ float shared[THREADS * V * 2];
    int chunk = blockIdx.x % p.chunks, n = blockIdx.x / p.chunks;
    Part part = p.part[blockIdx.y];
    Cover cover(part.c);
    i64 from = chunk * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    for (int lane0 = 0; lane0 < part.c / V; lane0 += cover.across) {
        int lane = lane0 + cover.lane;
        bool active = cover.row < cover.rows && lane < part.c / V;
        float sum[V] = {}, squares[V] = {};
        if (active) {
            const T* x = part.x + (i64)n * p.s * part.c + lane * V;
            Vec<T, V> pivot = load<T, V>(x);
#pragma unroll 8
            for (i64 r = from + cover.row; r < to; r += cover.rows) {
                Vec<T, V> v = load<T, V>(x + r * part.c);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float d = v.at(i) - pivot.at(i);
                    sum[i] += d;
                    squares[i] += d * d;
                }
            }
        }
        __syncthreads();
        if (cover.row < cover.rows) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                int at = (cover.row * cover.across + cover.lane) * V + i;
                shared[2 * at] = sum[i];
                shared[2 * at + 1] = squares[i];
            }
        }
        __syncthreads();
        int width = cover.across * V;
        for (int k = threadIdx.x; k < width; k += THREADS) {
            if (lane0 * V + k >= part.c) break;
            float s0 = 0, s1 = 0;
            for (int r = 0; r < cover.rows; r++) {
                s0 += shared[2 * (r * width + k)];
                s1 += shared[2 * (r * width + k) + 1];
            }
            float* out = p.partial + 2 * (((i64)n * p.chunks + chunk) * p.c + part.first + lane0 * V + k);
            out[0] = s0;
            out[1] = s1;
        }
    }
}

// Mean and reciprocal deviation of each (sample, group): one block each. With d = x - pivot, sums of
// d, d^2 and pivot d over all chunks, and of the pivots, give both; in f64 nothing is lost.
extern "C" __global__ void __launch_bounds__(THREADS) norm_stats(const __grid_constant__ Norm p) {
    __shared__ double scratch[33];
    int n = blockIdx.x / p.groups, g = blockIdx.x % p.groups, width = p.c / p.groups;
    int lanes = width < THREADS ? width : THREADS, rows = THREADS / lanes;
    int lane = threadIdx.x % lanes, row = threadIdx.x / lanes;
    double d = 0, dd = 0, pd = 0, start = 0, start2 = 0;
    for (int k0 = lane; row < rows && k0 < width; k0 += lanes) {
        int k = g * width + k0;
        double pivot = pivot_of(p, n, k);
        if (p.bias) pivot += to_float(p.bias[(i64)n * p.c + k]);
        const float2* part = (const float2*)p.partial + (i64)n * p.chunks * p.c + k;
        double s0 = 0, s1 = 0;
#pragma unroll 8
        for (int chunk = row; chunk < p.chunks; chunk += rows) {
            float2 v = part[(i64)chunk * p.c];
            s0 += v.x;
            s1 += v.y;
        }
        d += s0;
        dd += s1;
        pd += pivot * s0;
        if (row == 0) {
            start += pivot;
            start2 += pivot * pivot;
        }
    }
    d = block_sum(d, scratch);
    dd = block_sum(dd, scratch);
    pd = block_sum(pd, scratch);
    start = block_sum(start, scratch);
    start2 = block_sum(start2, scratch);
    if (threadIdx.x == 0) {
        double pixels = (double)p.s, size = pixels * width;
        double mean = (d + pixels * start) / size;
        double squares = dd + 2.0 * pd + pixels * start2 - size * mean * mean;
        double variance = squares > 0.0 ? squares / size : 0.0;
        p.stats[2 * blockIdx.x] = (float)mean;
        p.stats[2 * blockIdx.x + 1] = (float)(1.0 / sqrt(variance + (double)p.eps));
    }
}

// y = act(a x + b), from the last row to the first: the statistics' pass has left the last ones in the cache.
extern "C" __global__ void __launch_bounds__(THREADS) norm_apply(const __grid_constant__ Norm p) {
    int block = gridDim.x - 1 - blockIdx.x, chunk = block % p.chunks, n = block / p.chunks;
    Part part = p.part[blockIdx.y];
    Cover cover(part.c);
    if (cover.row >= cover.rows) return;
    i64 from = chunk * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    for (int lane = cover.lane; lane < part.c / V; lane += cover.across) {
        Coefficients k(p, n, part.first + lane * V);
        const T* x = part.x + (i64)n * p.s * part.c + lane * V;
        Y* y = p.y + (i64)n * p.s * p.c + part.first + lane * V;
        Rows rows(from + cover.row, to, cover.rows);
        x += rows.last * part.c;
        y += rows.last * p.c;
        i64 step = (i64)cover.rows * part.c, step_y = (i64)cover.rows * p.c;
#pragma unroll 8
        for (int left = rows.count; left > 0; left--, x -= step, y -= step_y) {
            Vec<T, V> v = load<T, V>(x);
            Vec<Y, V> out;
#pragma unroll
            for (int i = 0; i < V; i++) out.set(i, ACT(k.a[i] * v.at(i) + k.b[i]));
            store<Y, V>(y, out);
        }
    }
}
#endif

#if !defined(SLAB) && defined(GRAD)
// Sums of du and du xhat, for each channel of a stretch of pixels; du = dy act'(u).
extern "C" __global__ void __launch_bounds__(THREADS, 2) norm_grad_partial(const __grid_constant__ Norm p) {
    __shared__ float shared[THREADS * V * SUMS];
    int chunk = blockIdx.x % p.chunks, n = blockIdx.x / p.chunks;
    Part part = p.part[blockIdx.y];
    Cover cover(part.c);
    i64 from = chunk * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    int group = p.c / p.groups;
    for (int lane0 = 0; lane0 < part.c / V; lane0 += cover.across) {
        int lane = lane0 + cover.lane;
        bool active = cover.row < cover.rows && lane < part.c / V;
        float s[SUMS][V] = {};
        if (active) {
            int first = part.first + lane * V;
            Coefficients k(p, n, first);
            float mean[V];
#pragma unroll
            for (int i = 0; i < V; i++) {
                mean[i] = p.stats[2 * ((i64)n * p.groups + (first + i) / group)];
                if (p.bias) mean[i] -= to_float(p.bias[(i64)n * p.c + first + i]);
            }
            Rows rows(from + cover.row, to, cover.rows);
            const T* x = part.x + ((i64)n * p.s + rows.first) * part.c + lane * V;
            const Y* dy = p.dy + ((i64)n * p.s + rows.first) * p.c + first;
            i64 step = (i64)cover.rows * part.c, step_y = (i64)cover.rows * p.c;
            for (int left = rows.count; left > 0; left -= AT_ONCE, x += AT_ONCE * step, dy += AT_ONCE * step_y) {
                Vec<T, V> v[AT_ONCE];
                Vec<Y, V> d[AT_ONCE];
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    // What is behind the last row is loaded from the first and not used: no branch is needed.
                    int r = u < left ? u : 0;
                    v[u] = load<T, V>(x + r * step);
                    d[u] = load<Y, V>(dy + r * step_y);
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; u++) {
                    if (u >= left) break;
#pragma unroll
                    for (int i = 0; i < V; i++) {
                        float du = d[u].at(i) * DACT(k.a[i] * v[u].at(i) + k.b[i]);
                        float off = v[u].at(i) - mean[i];
                        s[0][i] += du;
                        s[1][i] += du * off;
                        if (SUMS > 2) s[SUMS - 1][i] += off;
                    }
                }
            }
            // From distances to the mean to xhat.
#pragma unroll
            for (int i = 0; i < V; i++) {
                float rstd = p.stats[2 * ((i64)n * p.groups + (first + i) / group) + 1];
#pragma unroll
                for (int q = 1; q < SUMS; q++) s[q][i] *= rstd;
            }
        }
        __syncthreads();
        if (cover.row < cover.rows) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                int at = (cover.row * cover.across + cover.lane) * V + i;
#pragma unroll
                for (int q = 0; q < SUMS; q++) shared[SUMS * at + q] = s[q][i];
            }
        }
        __syncthreads();
        int width = cover.across * V;
        for (int k = threadIdx.x; k < width; k += THREADS) {
            if (lane0 * V + k >= part.c) break;
            float total[SUMS] = {};
            for (int r = 0; r < cover.rows; r++) {
#pragma unroll
                for (int q = 0; q < SUMS; q++) total[q] += shared[SUMS * (r * width + k) + q];
            }
            float* out = p.partial + SUMS * (((i64)n * p.chunks + chunk) * p.c + part.first + lane0 * V + k);
#pragma unroll
            for (int q = 0; q < SUMS; q++) out[q] = total[q];
        }
    }
}

// Those sums over all stretches, FiLM's gradients, each group's two means, and the bias's gradient: one block
// a (sample, group).
extern "C" __global__ void __launch_bounds__(THREADS) norm_grad_sums(const __grid_constant__ Norm p) {
    __shared__ float scratch[33];
    __shared__ float reduced[THREADS * SUMS];
    int n = blockIdx.x / p.groups, g = blockIdx.x % p.groups, width = p.c / p.groups;
    int lanes = width < THREADS ? width : THREADS, rows = THREADS / lanes;
    int lane = threadIdx.x % lanes, row = threadIdx.x / lanes;
    float a = 0, b = 0;
    for (int k0 = 0; k0 < width; k0 += lanes) {
        int k = g * width + k0 + lane;
        bool active = row < rows && k0 + lane < width;
        float s[SUMS] = {};
        if (active) {
            const float* part = p.partial + SUMS * ((i64)n * p.chunks * p.c + k);
#pragma unroll 8
            for (int chunk = row; chunk < p.chunks; chunk += rows) {
#pragma unroll
                for (int q = 0; q < SUMS; q++) s[q] += part[(i64)chunk * p.c * SUMS + q];
            }
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < SUMS; q++) reduced[threadIdx.x * SUMS + q] = s[q];
        __syncthreads();
        if (active && row == 0) {
            i64 at = (i64)n * p.c + k;
#pragma unroll
            for (int q = 0; q < SUMS; q++) {
                s[q] = 0;
                for (int r = 0; r < rows; r++) s[q] += reduced[(r * lanes + lane) * SUMS + q];
                p.sums[SUMS * at + q] = s[q];
            }
            float weight = p.gamma[k];
            if (p.scale) {
                weight *= 1.0f + to_float(p.scale[(i64)n * p.film_row + k]);
                p.dscale[at] = p.gamma[k] * s[1] + p.beta[k] * s[0];
                p.dshift[at] = s[0];
            }
            a += weight * s[0];
            b += weight * s[1];
        }
    }
    float count = (float)((double)p.s * width);
    a = block_sum(a, scratch) / count;
    b = block_sum(b, scratch) / count;
    if (threadIdx.x == 0) {
        p.groups_sums[2 * blockIdx.x] = a;
        p.groups_sums[2 * blockIdx.x + 1] = b;
    }
#ifdef DBIAS
    float rstd = p.stats[2 * blockIdx.x + 1];
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        int k = g * width + i;
        i64 at = (i64)n * p.c + k;
        float weight = p.gamma[k];
        if (p.scale) weight *= 1.0f + to_float(p.scale[(i64)n * p.film_row + k]);
        p.dbias[at] = rstd * (weight * p.sums[SUMS * at] - (float)p.s * a - b * p.sums[SUMS * at + 2]);
    }
#endif
}

// dx of a thread's rows, from the last to the first; ADDS where another gradient is added.
template <bool ADDS>
__device__ __forceinline__ void input_gradient(const Norm& p, const Part& part, int n, int lane, Rows rows,
                                               int stride) {
    int group = p.c / p.groups, first = part.first + lane * V;
    Coefficients k(p, n, first);
    float q[V], r0[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
        i64 at = 2 * ((i64)n * p.groups + (first + i) / group);
        float mean = p.stats[at], rstd = p.stats[at + 1];
        if (p.bias) mean -= to_float(p.bias[(i64)n * p.c + first + i]);
        float a = p.groups_sums[at], b = p.groups_sums[at + 1];
        q[i] = -rstd * rstd * b;
        r0[i] = rstd * (mean * rstd * b - a);
    }
    i64 at = ((i64)n * p.s + rows.last) * part.c + lane * V, step = (i64)stride * part.c, step_y = (i64)stride * p.c;
    const Y* dy = p.dy + ((i64)n * p.s + rows.last) * p.c + first;
    for (int left = rows.count; left > 0; left -= AT_ONCE, at -= AT_ONCE * step, dy -= AT_ONCE * step_y) {
        Vec<T, V> v[AT_ONCE], extra[AT_ONCE];
        Vec<Y, V> d[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int r = u < left ? u : 0;
            v[u] = load<T, V>(part.x + at - r * step);
            d[u] = load<Y, V>(dy - r * step_y);
            if (ADDS) extra[u] = load<T, V>(part.addend + at - r * step);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (u >= left) break;
            Vec<T, V> out;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float du = d[u].at(i) * DACT(k.a[i] * v[u].at(i) + k.b[i]);
                float g = k.a[i] * du + (q[i] * v[u].at(i) + r0[i]);
                out.set(i, ADDS ? g + extra[u].at(i) : g);
            }
            store<T, V>(part.dx + at - u * step, out);
        }
    }
}

// dx = rstd (w du - A - xhat B) + addend, w = gamma (1 + scale). The first blocks make dgamma and dbeta; then
// the last stretches come first, which the sums' pass has left in the cache.
extern "C" __global__ void __launch_bounds__(THREADS, 2) norm_grad_apply(const __grid_constant__ Norm p) {
    int block = gridDim.x - 1 - blockIdx.x;
    if (block >= p.n * p.chunks) {
        if (blockIdx.y == 0) affine_gradient(p, blockIdx.x);
        return;
    }
    int chunk = block % p.chunks, n = block / p.chunks;
    Part part = p.part[blockIdx.y];
    Cover cover(part.c);
    if (!part.dx || cover.row >= cover.rows) return;
    i64 from = chunk * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    Rows rows(from + cover.row, to, cover.rows);
    for (int lane = cover.lane; lane < part.c / V; lane += cover.across) {
        if (part.addend) {
            input_gradient<true>(p, part, n, lane, rows, cover.rows);
        } else {
            input_gradient<false>(p, part, n, lane, rows, cover.rows);
        }
    }
}
#endif

#ifdef SLAB
// All in one launch, for images that fit the multiprocessors' shared memory: a cluster of CLUSTER blocks holds
// SLAB channels (whole groups) of one sample, each block a stretch of its pixels. What is read is kept, the
// blocks exchange their sums, and the result is written from shared memory.

#define LANES (SLAB / V)                                            // vectors of a pixel
#define PADDED (LANES <= 1 ? 1 : LANES <= 2 ? 2 : LANES <= 4 ? 4 : LANES <= 8 ? 8 : LANES <= 16 ? 16 : 32)

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ float of_block(const float* mine, u32 rank) {
    u32 here = (u32)__cvta_generic_to_shared(mine), there;
    float x;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there));
    return x;
}
#ifndef GRAD
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) norm_slab(const __grid_constant__ Norm p) {
    extern __shared__ __align__(16) u8 memory[];
    T* kept = (T*)memory;
    __shared__ float warp_sums[THREADS / 32][PADDED * V][2];
    __shared__ float sums[SLAB][2];
    __shared__ float a[SLAB], b[SLAB];      // a group's mean and the reciprocal of its deviation
    __shared__ double moments[SLAB][2];    // sums of x and of its square
    u32 rank = blockIdx.x % CLUSTER;
    int tile = blockIdx.x / CLUSTER % (p.c / SLAB), n = blockIdx.x / CLUSTER / (p.c / SLAB), first = tile * SLAB;
    i64 from = rank * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    int pixels = to > from ? (int)(to - from) : 0;
    int lane = threadIdx.x % PADDED, row = threadIdx.x / PADDED, rows = THREADS / PADDED;
    // Small images wait for memory, so what is needed later is asked for now. A thread has one channel of the
    // cluster's sums (SLAB is at most THREADS), and V channels of the image.
    double pivot_here = 0.0;
    if (threadIdx.x < SLAB) {
        pivot_here = pivot_of(p, n, first + threadIdx.x);
        if (p.bias) pivot_here += to_float(p.bias[(i64)n * p.c + first + threadIdx.x]);
    }
    bool active = lane < LANES;
    int c = first + (active ? lane : 0) * V;
    float g[V], h[V], shifted[V];
#pragma unroll
    for (int e = 0; e < V; e++) {
        g[e] = p.gamma[c + e];
        h[e] = p.beta[c + e];
        if (p.scale) {
            i64 at = (i64)n * p.film_row + c + e;
            float gain = 1.0f + to_float(p.scale[at]);
            g[e] *= gain;
            h[e] = h[e] * gain + to_float(p.shift[at]);
        }
        shifted[e] = p.bias ? to_float(p.bias[(i64)n * p.c + c + e]) : 0.0f;
    }
    float s0[V] = {}, s1[V] = {};
    if (active) {
        int i = 0;
        while (i < 3 && p.part[i + 1].x && c >= p.part[i + 1].first) i++;
        const Part& part = p.part[i];
        const T* image = part.x + (i64)n * p.s * part.c + c - part.first;
        const T* x = image + from * part.c;
        Vec<T, V> pivots = load<T, V>(image);
        float pivot[V];
#pragma unroll
        for (int e = 0; e < V; e++) pivot[e] = pivots.at(e);
#pragma unroll 8
        for (int r = row; r < pixels; r += rows) {
            Vec<T, V> v = load<T, V>(x + (i64)r * part.c);
            store<T, V>(kept + (i64)(r * LANES + lane) * V, v);
#pragma unroll
            for (int e = 0; e < V; e++) {
                float d = v.at(e) - pivot[e];
                s0[e] += d;
                s1[e] += d * d;
            }
        }
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
#pragma unroll
        for (int o = 16; o >= PADDED; o >>= 1) {
            s0[e] += __shfl_xor_sync(0xffffffffu, s0[e], o);
            s1[e] += __shfl_xor_sync(0xffffffffu, s1[e], o);
        }
        if ((threadIdx.x & 31) < PADDED) {
            warp_sums[threadIdx.x / 32][lane * V + e][0] = s0[e];
            warp_sums[threadIdx.x / 32][lane * V + e][1] = s1[e];
        }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < 2 * SLAB; k += THREADS) {
        float sum = 0;
        for (int w = 0; w < THREADS / 32; w++) sum += warp_sums[w][k / 2][k & 1];
        sums[k / 2][k & 1] = sum;
    }
    cluster_arrive();
    cluster_wait();
    // Every block adds all blocks' sums, in the same order: a thread a channel, then a thread a group.
    int width = p.c / p.groups;
    if (threadIdx.x < SLAB) {
        int k = threadIdx.x;
        float t0 = 0, t1 = 0;
#pragma unroll
        for (u32 r = 0; r < CLUSTER; r++) {
            t0 += of_block(&sums[k][0], r);
            t1 += of_block(&sums[k][1], r);
        }
        double count = (double)p.s;
        moments[k][0] = t0 + count * pivot_here;
        moments[k][1] = t1 + 2.0 * pivot_here * t0 + count * pivot_here * pivot_here;
    }
    // This block has read the others' sums.
    cluster_arrive();
    __syncthreads();
    for (int g = threadIdx.x; g < SLAB / width; g += THREADS) {
        double total = 0, squares = 0, size = (double)p.s * width;
        for (int k = g * width; k < (g + 1) * width; k++) {
            total += moments[k][0];
            squares += moments[k][1];
        }
        double mean = total / size, rest = squares - total * mean;
        double variance = rest > 0.0 ? rest / size : 0.0;
        float m = (float)mean, rstd = (float)(1.0 / sqrt(variance + (double)p.eps));
        a[g] = m;
        b[g] = rstd;
        if (rank == 0) {
            float* stats = p.stats + 2 * ((i64)n * p.groups + first / width + g);
            stats[0] = m;
            stats[1] = rstd;
        }
    }
    __syncthreads();
    float ka[V], kb[V];
#pragma unroll
    for (int e = 0; e < V; e++) {
        int group = (c - first + e) / width;
        ka[e] = b[group] * g[e];
        kb[e] = h[e] - (a[group] - shifted[e]) * ka[e];
    }
    Y* y = p.y + ((i64)n * p.s + from) * p.c + c;
#pragma unroll 4
    for (int r = active ? row : pixels; r < pixels; r += rows) {
        Vec<T, V> v = load<T, V>(kept + (i64)(r * LANES + lane) * V);
        Vec<Y, V> out;
#pragma unroll
        for (int e = 0; e < V; e++) out.set(e, ACT(ka[e] * v.at(e) + kb[e]));
        store<Y, V>(y + (i64)r * p.c, out);
    }
    // No block leaves while another reads its sums.
    cluster_wait();
}
#else
// With one sample it makes dgamma and dbeta too; with more, norm_grad_affine adds them up.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) norm_grad_slab(const __grid_constant__ Norm p) {
    extern __shared__ __align__(16) u8 memory[];
    __shared__ float warp_sums[THREADS / 32][PADDED * V][SUMS];
    __shared__ float sums[SLAB][SUMS];      // of this block
    __shared__ float totals[SLAB][SUMS];    // of the cluster
    __shared__ float a[SLAB], b[SLAB];      // a group's two means
    u32 rank = blockIdx.x % CLUSTER;
    int tile = blockIdx.x / CLUSTER % (p.c / SLAB), n = blockIdx.x / CLUSTER / (p.c / SLAB), first = tile * SLAB;
    i64 from = rank * p.rows, to = from + p.rows < p.s ? from + p.rows : p.s;
    int pixels = to > from ? (int)(to - from) : 0, width = p.c / p.groups;
    int lane = threadIdx.x % PADDED, row = threadIdx.x / PADDED, rows = THREADS / PADDED;
    bool active = lane < LANES;
    int c = first + (active ? lane : 0) * V, i = 0;
    while (i < 3 && p.part[i + 1].x && c >= p.part[i + 1].first) i++;
    const Part& part = p.part[i];
    i64 at = ((i64)n * p.s + from) * part.c + c - part.first;
    T* kept = (T*)memory;
    Y* kept_dy = (Y*)(kept + (i64)p.rows * SLAB);
    Coefficients k(p, n, c);
    float s[SUMS][V] = {};
    if (active) {
        const T* x = part.x + at;
        const Y* dy = p.dy + ((i64)n * p.s + from) * p.c + c;
        float mean[V];
#pragma unroll
        for (int e = 0; e < V; e++) {
            mean[e] = p.stats[2 * ((i64)n * p.groups + (c + e) / width)];
            if (p.bias) mean[e] -= to_float(p.bias[(i64)n * p.c + c + e]);
        }
#pragma unroll 4
        for (int r = row; r < pixels; r += rows) {
            Vec<T, V> v = load<T, V>(x + (i64)r * part.c);
            Vec<Y, V> d = load<Y, V>(dy + (i64)r * p.c);
            store<T, V>(kept + (r * LANES + lane) * V, v);
            store<Y, V>(kept_dy + (r * LANES + lane) * V, d);
#pragma unroll
            for (int e = 0; e < V; e++) {
                float du = d.at(e) * DACT(k.a[e] * v.at(e) + k.b[e]);
                float off = v.at(e) - mean[e];
                s[0][e] += du;
                s[1][e] += du * off;
                if (SUMS > 2) s[SUMS - 1][e] += off;
            }
        }
    }
#pragma unroll
    for (int e = 0; e < V; e++) {
#pragma unroll
        for (int q = 0; q < SUMS; q++) {
#pragma unroll
            for (int o = 16; o >= PADDED; o >>= 1) s[q][e] += __shfl_xor_sync(0xffffffffu, s[q][e], o);
            if ((threadIdx.x & 31) < PADDED) warp_sums[threadIdx.x / 32][lane * V + e][q] = s[q][e];
        }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < SUMS * SLAB; j += THREADS) {
        float sum = 0;
        for (int w = 0; w < THREADS / 32; w++) sum += warp_sums[w][j / SUMS][j % SUMS];
        sums[j / SUMS][j % SUMS] = sum;
    }
    cluster_arrive();
    cluster_wait();
    // Every block adds all blocks' sums, in the same order.
    for (int j = threadIdx.x; j < SUMS * SLAB; j += THREADS) {
        int channel = j / SUMS, q = j % SUMS;
        float total = 0;
#pragma unroll
        for (u32 r = 0; r < CLUSTER; r++) total += of_block(&sums[channel][q], r);
        // From distances to the mean to xhat.
        if (q > 0) total *= p.stats[2 * ((i64)n * p.groups + (first + channel) / width) + 1];
        totals[channel][q] = total;
        if (rank == 0) p.sums[SUMS * ((i64)n * p.c + first + channel) + q] = total;
    }
    // This block has read the others' sums.
    cluster_arrive();
    __syncthreads();
    for (int g = threadIdx.x; g < SLAB / width; g += THREADS) {
        float t0 = 0, t1 = 0, count = (float)((double)p.s * width);
        for (int j = g * width; j < (g + 1) * width; j++) {
            float weight = p.gamma[first + j];
            if (p.scale) weight *= 1.0f + to_float(p.scale[(i64)n * p.film_row + first + j]);
            t0 += weight * totals[j][0];
            t1 += weight * totals[j][1];
        }
        a[g] = t0 / count;
        b[g] = t1 / count;
    }
    __syncthreads();
    if (rank == 0) {
        for (int j = threadIdx.x; j < SLAB; j += THREADS) {
            int channel = first + j;
            i64 to = (i64)n * p.c + channel;
            float weight = p.gamma[channel], gain = 1.0f;
            if (p.scale) {
                gain += to_float(p.scale[(i64)n * p.film_row + channel]);
                weight *= gain;
                p.dscale[to] = p.gamma[channel] * totals[j][1] + p.beta[channel] * totals[j][0];
                p.dshift[to] = totals[j][0];
            }
            if (p.n == 1) {
                p.dbeta[channel] = gain * totals[j][0];
                p.dgamma[channel] = gain * totals[j][1];
            }
#ifdef DBIAS
            float rstd = p.stats[2 * ((i64)n * p.groups + channel / width) + 1];
            p.dbias[to] = rstd * (weight * totals[j][0] - (float)p.s * a[j / width] - b[j / width] * totals[j][2]);
#endif
        }
    }
    float k1[V], k0[V];
#pragma unroll
    for (int e = 0; e < V; e++) {
        const float* st = p.stats + 2 * ((i64)n * p.groups + (c + e) / width);
        float mean = st[0], rstd = st[1], ga = a[(c - first + e) / width], gb = b[(c - first + e) / width];
        if (p.bias) mean -= to_float(p.bias[(i64)n * p.c + c + e]);
        k1[e] = -rstd * rstd * gb;
        k0[e] = rstd * (mean * rstd * gb - ga);
    }
    T* dx = part.dx + at;
    const T* addend = part.addend ? part.addend + at : 0;
#pragma unroll 4
    for (int r = active && part.dx ? row : pixels; r < pixels; r += rows) {
        Vec<T, V> v = load<T, V>(kept + (r * LANES + lane) * V), extra = {}, out;
        Vec<Y, V> d = load<Y, V>(kept_dy + (r * LANES + lane) * V);
        if (addend) extra = load<T, V>(addend + (i64)r * part.c);
#pragma unroll
        for (int e = 0; e < V; e++) {
            float du = d.at(e) * DACT(k.a[e] * v.at(e) + k.b[e]);
            float g = k.a[e] * du + (k1[e] * v.at(e) + k0[e]);
            out.set(e, addend ? g + extra.at(e) : g);
        }
        store<T, V>(dx + (i64)r * part.c, out);
    }
    // No block leaves while another reads its sums.
    cluster_wait();
}

extern "C" __global__ void norm_grad_affine(const __grid_constant__ Norm p) {
    affine_gradient(p, blockIdx.x);
}
#endif
#endif
