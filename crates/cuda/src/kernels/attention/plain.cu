// Attention for head sizes that the tiled kernels do not take: any D and Dv up to 1024. One block a query
// (or, for the gradients of keys and values, a key); 128 keys or queries at a time.

#define BLOCK 128
#define MOST 8

struct Attention {
    const T* q; const T* k; const T* v; const T* o; const float* lse; const T* dout;
    T* out; float* lse_out; T* dq; T* dk; T* dv;
    int heads, sq, sk, d, e;
    float scale;
};

__device__ __forceinline__ float dot(const T* a, const T* b, int d) {
    float s = 0;
    for (int i = 0; i < d; i++) s += to_float(a[i]) * to_float(b[i]);
    return s;
}

extern "C" __global__ void __launch_bounds__(BLOCK) attention_plain(const __grid_constant__ Attention p) {
    __shared__ float prob[BLOCK];
    __shared__ float scratch[33];
    __shared__ float best[BLOCK / 32];
    i64 at = blockIdx.x;
    int i = (int)(at % p.sq), h = (int)(at / p.sq % p.heads);
    i64 b = at / p.sq / p.heads;
    const T* q = p.q + (b * p.sq + i) * p.heads * p.d + h * p.d;
    float top = -__int_as_float(0x7f800000), sum = 0, acc[MOST] = {};
    for (int j0 = 0; j0 < p.sk; j0 += BLOCK) {
        int j = j0 + threadIdx.x;
        float l = -__int_as_float(0x7f800000);
        if (j < p.sk) l = p.scale * dot(q, p.k + (b * p.sk + j) * p.heads * p.d + h * p.d, p.d);
        float m = l;
        for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
        __syncthreads();
        if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = m;
        __syncthreads();
        for (int w = 0; w < BLOCK / 32; w++) m = fmaxf(m, best[w]);
        float next = fmaxf(top, m), keep = expf(top - next);
        float pr = j < p.sk ? expf(l - next) : 0.0f;
        prob[threadIdx.x] = pr;
        sum = sum * keep + block_sum(pr, scratch);
        top = next;
        int keys = min(BLOCK, p.sk - j0);
        for (int r = 0; r < MOST; r++) {
            int e = threadIdx.x + r * BLOCK;
            if (e >= p.e) break;
            const T* v = p.v + (b * p.sk + j0) * p.heads * p.e + h * p.e + e;
            float s = acc[r] * keep;
            for (int t = 0; t < keys; t++) s += prob[t] * to_float(v[(i64)t * p.heads * p.e]);
            acc[r] = s;
        }
        __syncthreads();
    }
    for (int r = 0; r < MOST; r++) {
        int e = threadIdx.x + r * BLOCK;
        if (e < p.e) put(p.out[(b * p.sq + i) * p.heads * p.e + h * p.e + e], acc[r] / sum);
    }
    if (threadIdx.x == 0) p.lse_out[(b * p.heads + h) * p.sq + i] = top + logf(sum);
}

extern "C" __global__ void __launch_bounds__(BLOCK) attention_plain_queries(const __grid_constant__ Attention p) {
    __shared__ float slope[BLOCK];
    i64 at = blockIdx.x;
    int i = (int)(at % p.sq), h = (int)(at / p.sq % p.heads);
    i64 b = at / p.sq / p.heads, row = b * p.sq + i;
    const T* q = p.q + row * p.heads * p.d + h * p.d;
    const T* g = p.dout + row * p.heads * p.e + h * p.e;
    float lse = p.lse[(b * p.heads + h) * p.sq + i], delta = dot(p.o + row * p.heads * p.e + h * p.e, g, p.e);
    float acc[MOST] = {};
    for (int j0 = 0; j0 < p.sk; j0 += BLOCK) {
        int j = j0 + threadIdx.x;
        float ds = 0;
        if (j < p.sk) {
            float pr = expf(p.scale * dot(q, p.k + (b * p.sk + j) * p.heads * p.d + h * p.d, p.d) - lse);
            ds = pr * (dot(g, p.v + (b * p.sk + j) * p.heads * p.e + h * p.e, p.e) - delta) * p.scale;
        }
        __syncthreads();
        slope[threadIdx.x] = ds;
        __syncthreads();
        int keys = min(BLOCK, p.sk - j0);
        for (int r = 0; r < MOST; r++) {
            int e = threadIdx.x + r * BLOCK;
            if (e >= p.d) break;
            const T* k = p.k + (b * p.sk + j0) * p.heads * p.d + h * p.d + e;
            for (int t = 0; t < keys; t++) acc[r] += slope[t] * to_float(k[(i64)t * p.heads * p.d]);
        }
    }
    for (int r = 0; r < MOST; r++) {
        int e = threadIdx.x + r * BLOCK;
        if (e < p.d) put(p.dq[row * p.heads * p.d + h * p.d + e], acc[r]);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) attention_plain_keys(const __grid_constant__ Attention p) {
    __shared__ float prob[BLOCK];
    __shared__ float slope[BLOCK];
    i64 at = blockIdx.x;
    int j = (int)(at % p.sk), h = (int)(at / p.sk % p.heads);
    i64 b = at / p.sk / p.heads, row = b * p.sk + j;
    const T* k = p.k + row * p.heads * p.d + h * p.d;
    const T* v = p.v + row * p.heads * p.e + h * p.e;
    float dk[MOST] = {}, dv[MOST] = {};
    for (int i0 = 0; i0 < p.sq; i0 += BLOCK) {
        int i = i0 + threadIdx.x;
        float pr = 0, ds = 0;
        if (i < p.sq) {
            i64 query = b * p.sq + i;
            const T* g = p.dout + query * p.heads * p.e + h * p.e;
            float delta = dot(p.o + query * p.heads * p.e + h * p.e, g, p.e);
            pr = expf(p.scale * dot(p.q + query * p.heads * p.d + h * p.d, k, p.d) - p.lse[(b * p.heads + h) * p.sq + i]);
            ds = pr * (dot(g, v, p.e) - delta) * p.scale;
        }
        __syncthreads();
        prob[threadIdx.x] = pr;
        slope[threadIdx.x] = ds;
        __syncthreads();
        int queries = min(BLOCK, p.sq - i0);
        for (int r = 0; r < MOST; r++) {
            int e = threadIdx.x + r * BLOCK;
            const T* q = p.q + (b * p.sq + i0) * p.heads * p.d + h * p.d + e;
            const T* g = p.dout + (b * p.sq + i0) * p.heads * p.e + h * p.e + e;
            for (int t = 0; t < queries; t++) {
                if (e < p.d) dk[r] += slope[t] * to_float(q[(i64)t * p.heads * p.d]);
                if (e < p.e) dv[r] += prob[t] * to_float(g[(i64)t * p.heads * p.e]);
            }
        }
    }
    for (int r = 0; r < MOST; r++) {
        int e = threadIdx.x + r * BLOCK;
        if (e < p.d) put(p.dk[row * p.heads * p.d + h * p.d + e], dk[r]);
        if (e < p.e) put(p.dv[row * p.heads * p.e + h * p.e + e], dv[r]);
    }
}
