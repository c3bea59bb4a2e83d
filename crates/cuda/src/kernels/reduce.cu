// Sums over axes, of x seen as [A, R, B]: over R. T is the type of x, O of the result; MAP is applied to
// every element first. Stretches of R are summed by blocks of their own where there is much to sum, and
// their sums are added in a fixed order.

struct Reduce {
    const T* x;
    O* y;
    float* partial;    // [A, chunks, B]
    i64 a, r, b;
    int chunks;
    i64 rows;          // of R in a chunk
    float scale;
};

// A stretch's sum; the result, where the stretch is all there is.
__device__ __forceinline__ void put_sum(const Reduce& p, i64 at, float sum) {
    if (p.chunks == 1) put(p.y[at], sum * p.scale);
    else p.partial[at] = sum;
}

// B is 1: one block a (row, stretch).
extern "C" __global__ void reduce_rows(const __grid_constant__ Reduce p) {
    __shared__ float scratch[33];
    i64 row = blockIdx.x / p.chunks, chunk = blockIdx.x % p.chunks;
    i64 from = chunk * p.rows, to = from + p.rows < p.r ? from + p.rows : p.r;
    const T* x = p.x + row * p.r;
    float sum = 0;
#pragma unroll 4
    for (i64 i = from + threadIdx.x; i < to; i += blockDim.x) {
        float v = to_float(x[i]);
        sum += MAP(v);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) put_sum(p, blockIdx.x, sum);
}

// B is more: threads go along B, V at a time, and over rows.
extern "C" __global__ void __launch_bounds__(256) reduce_columns(const __grid_constant__ Reduce p) {
    __shared__ float shared[256 * V];
    i64 a = blockIdx.x / p.chunks, chunk = blockIdx.x % p.chunks;
    i64 from = chunk * p.rows, to = from + p.rows < p.r ? from + p.rows : p.r;
    i64 vectors = p.b / V;
    int across = vectors < 256 ? (int)vectors : 256, rows = 256 / across;
    int row = threadIdx.x / across, lane = threadIdx.x % across;
    for (i64 lane0 = (i64)blockIdx.y * across; lane0 < vectors; lane0 += (i64)gridDim.y * across) {
        float sum[V] = {};
        if (row < rows && lane0 + lane < vectors) {
            const T* x = p.x + a * p.r * p.b + (lane0 + lane) * V;
#pragma unroll 4
            for (i64 r = from + row; r < to; r += rows) {
                Vec<T, V> v = load<T, V>(x + r * p.b);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    float e = v.at(i);
                    sum[i] += MAP(e);
                }
            }
        }
        __syncthreads();
        if (row < rows) {
#pragma unroll
            for (int i = 0; i < V; i++) shared[(row * across + lane) * V + i] = sum[i];
        }
        __syncthreads();
        int width = across * V;
        for (int k = threadIdx.x; k < width; k += 256) {
            if (lane0 * V + k >= p.b) break;
            float s = 0;
            for (int r = 0; r < rows; r++) s += shared[r * width + k];
            put_sum(p, (a * p.chunks + chunk) * p.b + lane0 * V + k, s);
        }
    }
}

// The sums of stretches, where there are several: 32 results a block of 32 x FINISH_ROWS threads, which are
// many, as each waits for memory and adds little.
#define FINISH_ROWS 32
extern "C" __global__ void __launch_bounds__(32 * FINISH_ROWS) reduce_finish(const __grid_constant__ Reduce p) {
    __shared__ float reduced[FINISH_ROWS][33];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32;
    i64 at = (i64)blockIdx.x * 32 + lane, a = at / p.b, b = at % p.b;
    float sum = 0;
    if (at < p.a * p.b) {
#pragma unroll 8
        for (int chunk = row; chunk < p.chunks; chunk += FINISH_ROWS)
            sum += p.partial[(a * p.chunks + chunk) * p.b + b];
    }
    reduced[row][lane] = sum;
    __syncthreads();
    if (row == 0 && at < p.a * p.b) {
        sum = 0;
#pragma unroll
        for (int r = 0; r < FINISH_ROWS; r++) sum += reduced[r][lane];
        put(p.y[at], sum * p.scale);
    }
}

// Any axes: one block a result.
struct Strided {
    const T* x;
    O* y;
    i64 kept[6], kept_stride[6];
    i64 summed[6], summed_stride[6];
    i64 results, count;
    float scale;
};

extern "C" __global__ void reduce_strided(const __grid_constant__ Strided p) {
    __shared__ float scratch[33];
    i64 rest = blockIdx.x, base = 0;
    for (int a = 5; a >= 0; a--) {
        base += rest % p.kept[a] * p.kept_stride[a];
        rest /= p.kept[a];
    }
    float sum = 0;
    for (i64 i = threadIdx.x; i < p.count; i += blockDim.x) {
        i64 left = i, at = base;
        for (int a = 5; a >= 0; a--) {
            at += left % p.summed[a] * p.summed_stride[a];
            left /= p.summed[a];
        }
        float v = to_float(p.x[at]);
        sum += MAP(v);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) put(p.y[blockIdx.x], sum * p.scale);
}
