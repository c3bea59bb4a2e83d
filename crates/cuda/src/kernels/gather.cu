// Rows of a table by index, and the table's gradient: each element adds the rows that chose it, in order.

extern "C" __global__ void gather(const T* table, const i32* indices, O* y, i64 rows, i64 d, i64 count) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count * d; i += (i64)gridDim.x * blockDim.x) {
        i64 row = indices[i / d];
        row = row < 0 ? 0 : row < rows ? row : rows - 1;
        put(y[i], to_float(table[row * d + i % d]));
    }
}

extern "C" __global__ void gather_grad(const i32* indices, const T* dy, O* table, i64 rows, i64 d, i64 count) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * d; i += (i64)gridDim.x * blockDim.x) {
        float sum = 0;
        for (i64 at = 0; at < count; at++) {
            i64 row = indices[at];
            row = row < 0 ? 0 : row < rows ? row : rows - 1;
            if (row == i / d) sum += to_float(dy[at * d + i % d]);
        }
        put(table[i], sum);
    }
}
