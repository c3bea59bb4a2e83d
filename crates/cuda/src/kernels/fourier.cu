// Cyclic convolution over the spatial axes of [N, Z, Y, X, C] as the plain sum: point-spread functions are
// small, and taps that are zero cost one comparison. One thread a pixel and channel.

struct Cyclic {
    const T* x;
    const float* kernel;    // [N or 1, Z, Y, X, C or 1]
    O* y;
    int n, c, size[3];
    i64 kernel_n, kernel_pixel, kernel_c;    // steps of the kernel
    int adjoint;
    i64 count;
};

extern "C" __global__ void cyclic(const __grid_constant__ Cyclic p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        i64 rest = i;
        int k = (int)(rest % p.c); rest /= p.c;
        int x = (int)(rest % p.size[2]); rest /= p.size[2];
        int y = (int)(rest % p.size[1]); rest /= p.size[1];
        int z = (int)(rest % p.size[0]);
        i64 n = rest / p.size[0];
        const float* taps = p.kernel + n * p.kernel_n + k * p.kernel_c;
        const T* image = p.x + n * p.size[0] * p.size[1] * p.size[2] * p.c + k;
        float sum = 0;
        for (int qz = 0; qz < p.size[0]; qz++) {
            int sz = p.adjoint ? z + qz : z - qz + p.size[0];
            sz -= sz >= p.size[0] ? p.size[0] : 0;
            for (int qy = 0; qy < p.size[1]; qy++) {
                int sy = p.adjoint ? y + qy : y - qy + p.size[1];
                sy -= sy >= p.size[1] ? p.size[1] : 0;
                const float* row = taps + ((i64)qz * p.size[1] + qy) * p.size[2] * p.kernel_pixel;
                const T* line = image + ((i64)sz * p.size[1] + sy) * p.size[2] * p.c;
                for (int qx = 0; qx < p.size[2]; qx++) {
                    float tap = row[qx * p.kernel_pixel];
                    if (tap == 0.0f) continue;
                    int sx = p.adjoint ? x + qx : x - qx + p.size[2];
                    sx -= sx >= p.size[2] ? p.size[2] : 0;
                    sum += tap * to_float(line[(i64)sx * p.c]);
                }
            }
        }
        put(p.y[i], sum);
    }
}
