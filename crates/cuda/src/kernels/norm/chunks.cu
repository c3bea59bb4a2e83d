// The norm by three launches that cut pixels into stretches, behind shared.cu.

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
        Grid grid(p, part.first + lane * V);
        const T* x = part.x + (i64)n * p.s * part.c + lane * V;
        Y* y = p.y + (i64)n * p.s * p.c + part.first + lane * V;
        Rows rows(from + cover.row, to, cover.rows);
        x += rows.last * part.c;
        y += rows.last * p.c;
        i64 step = (i64)cover.rows * part.c, step_y = (i64)cover.rows * p.c;
#pragma unroll 8
        for (int left = rows.count; left > 0; left--, x -= step, y -= step_y) {
            Vec<T, V> v = load<T, V>(x);
            float u[V];
#pragma unroll
            for (int i = 0; i < V; i++) u[i] = ACT(k.a[i] * v.at(i) + k.b[i]);
            grid.apply(u);
            store_rounded(y, u);
        }
    }
}
