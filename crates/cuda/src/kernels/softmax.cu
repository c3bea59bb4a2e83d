// Softmax over the last axis: one block a row.

extern "C" __global__ void softmax_rows(const T* x, O* y, i64 c) {
    __shared__ float scratch[33];
    __shared__ float best[32];
    const T* row = x + blockIdx.x * c;
    float top = -__int_as_float(0x7f800000);
    for (i64 i = threadIdx.x; i < c; i += blockDim.x) top = fmaxf(top, to_float(row[i]));
    for (int o = 16; o > 0; o >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = top;
    __syncthreads();
    for (int w = 0; w < (int)(blockDim.x >> 5); w++) top = fmaxf(top, best[w]);
    float sum = 0;
    for (i64 i = threadIdx.x; i < c; i += blockDim.x) sum += expf(to_float(row[i]) - top);
    sum = block_sum(sum, scratch);
    for (i64 i = threadIdx.x; i < c; i += blockDim.x) put(y[blockIdx.x * c + i], expf(to_float(row[i]) - top) / sum);
}
