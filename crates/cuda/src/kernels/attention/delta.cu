// What the attention kernels of float32 share; includes nothing.
//
// attention_delta(o, do_, lse, delta, heads, sq, o_row, do_row, rows)
//   grid  ceil(rows / 256) with rows = B H sq, block 256; delta: 2 rows floats: -rowsum(o do), then -lse log2(e)

constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

template <int N> struct Vector;
template <> struct Vector<1> { typedef float type; };
template <> struct Vector<2> { typedef float2 type; };
template <> struct Vector<4> { typedef float4 type; };

extern "C" __global__ void __launch_bounds__(256) attention_delta(const float* __restrict__ o, const float* __restrict__ do_,
                                                                const float* __restrict__ lse, float* __restrict__ delta, int heads, int sq,
                                                                int o_row, int do_row, long long rows) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= rows) return;
    // Heads vary fastest, as in memory.
    int h = (int)(i % heads);
    long long row = i / heads, b = row / sq, s = row % sq;
    const float* x = o + row * o_row + h * D;
    const float* y = do_ + row * do_row + h * D;
    float sum = 0.f;
    for (int c = 0; c < D; c++) sum = fmaf(x[c], y[c], sum);
    long long at = (b * heads + h) * sq + s;
    delta[at] = -sum;
    delta[rows + at] = -lse[at] * LOG2E;
}
