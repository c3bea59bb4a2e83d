// The norm's gradient by three launches that cut pixels into stretches, behind shared.cu with GRAD.

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
