// The norm or its gradient by clusters, behind shared.cu with SLAB and CLUSTER.
//
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
    Grid grid(p, c);
    Y* y = p.y + ((i64)n * p.s + from) * p.c + c;
#pragma unroll 4
    for (int r = active ? row : pixels; r < pixels; r += rows) {
        Vec<T, V> v = load<T, V>(kept + (i64)(r * LANES + lane) * V);
        float u[V];
#pragma unroll
        for (int e = 0; e < V; e++) u[e] = ACT(ka[e] * v.at(e) + kb[e]);
        grid.apply(u);
        store_rounded(y + (i64)r * p.c, u);
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
