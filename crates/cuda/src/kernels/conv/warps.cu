// What convolutions by single warps share (volume.cu, one_in.cu): products of 16-bit numbers, and the end of a tile. Behind the prelude;
// T is bf16 or f16.
//
// Accumulators of a product of 16 pixels by 8 channels: pixel lane / 4 (+ 8 for i & 2), channel 2 (lane % 4) + (i & 1) at [i].

__device__ __forceinline__ u32 pack(bf16, float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ u32 pack(f16, float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// d += a b with 16 or 8 channels that are summed over.
#define PRODUCTS(TYPE)                                                                                                                     \
    __device__ __forceinline__ void product(TYPE, float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {                                      \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                                \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                                                \
    }                                                                                                                                      \
    __device__ __forceinline__ void product_of_8(TYPE, float (&d)[4], const u32 (&a)[4], u32 b0) {                                         \
        asm("mma.sync.aligned.m16n8k8.row.col.f32." #TYPE "." #TYPE ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"              \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                                \
            : "r"(a[0]), "r"(a[1]), "r"(b0));                                                                                               \
    }
PRODUCTS(bf16)
PRODUCTS(f16)

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Of four lanes with four words each, a lane gets word number `t`, which is its own number, of each of the four.
__device__ __forceinline__ void exchange(u32 (&w)[4], int t) {
    bool odd = t & 1, high = t & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        if (odd) w[i] = got;
        else w[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
        if (high) w[i] = got;
        else w[i + 2] = got;
    }
}

// act(sums + bias) + residual of ROWS x 16 pixels by 8 COUNT channels, stored 16 bytes at a time. `place` gives the first element of
// pixel x (of 16) of a row, or a negative number where there is none; channels from `channels` on are left out.
template <int ROWS, int COUNT, typename Place>
__device__ __forceinline__ void finish(float (&acc)[ROWS][COUNT][4], const float (&bias)[COUNT][2], const T* residual, T* y, int channels, Place place) {
    static_assert(ROWS * COUNT % 2 == 0, "words in groups of four");
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int first = 0; first < ROWS * COUNT * 2; first += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int j = (first + i) % COUNT, half = (first + i) / COUNT % 2, row = (first + i) / COUNT / 2;
            float low = acc[row][j][2 * half] + bias[j][0], high = acc[row][j][2 * half + 1] + bias[j][1];
            low = ACT(low), high = ACT(high);
            if (residual) {
                i64 at = place(row, g + 8 * half);
                if (at >= 0 && j * 8 < channels) {
                    Vec<T, 2> more = load<T, 2>(residual + at + j * 8 + 2 * t);
                    low += more.at(0), high += more.at(1);
                }
            }
            words[i] = pack(T(), low, high);
        }
        exchange(words, t);
        int mine = first + t, j = mine % COUNT, half = mine / COUNT % 2, row = mine / COUNT / 2;
        i64 at = place(row, g + 8 * half);
        if (at >= 0 && j * 8 < channels) *(uint4*)(y + at + j * 8) = uint4{words[0], words[1], words[2], words[3]};
    }
}
