// Group norm, its statistics and its gradient, on x seen as [N, S, C] in up to four parts along C.
//
// T is the type of x (and dx), Y of y and dy, F of FiLM's scale and shift, B of the bias; V channels are moved
// together. Kernels stand in files of their own behind this one: chunks.cu, grad.cu, slab.cu (GRAD says which of them) and
// whole.cu. With DBIAS the gradient also sums dx over each sample's pixels.
// Everything is done per (sample, channel): a norm is then y = act(a x + b) with two coefficients for each,
// and its gradient dx = p du + q x + r. Blocks take a stretch of pixels and all channels of one part;
// stretches' sums go through memory and are added in a fixed order. With ON_GRID results are whole numbers of a grid.

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
    const float* grid;       // [2, C]: what results are multiplied by, and zeros
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

// What turns results of V channels into whole numbers, which storing rounds.
struct Grid {
#ifdef ON_GRID
    float times[V], zeros[V];
    __device__ __forceinline__ Grid(const Norm& p, int c) {
#pragma unroll
        for (int i = 0; i < V; i++) times[i] = p.grid[c + i], zeros[i] = p.grid[p.c + c + i];
    }
    __device__ __forceinline__ void apply(float (&u)[V]) const {
#pragma unroll
        for (int i = 0; i < V; i++) u[i] = u[i] * times[i] + zeros[i];
    }
#else
    __device__ __forceinline__ Grid(const Norm&, int) {}
    __device__ __forceinline__ void apply(float (&)[V]) const {}
#endif
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
