// What the bf16 and fp16 attention kernels share: matrix-unit instructions and tile loads. Stands behind half.cu, before
// forward.cu or backward.cu.
//
// Options: half.cu's; -DHEAD_DIM=8|16|32|64|128; -DD=<real head size>;
// -DVEC=8|4|2|1 (elements per global load: divides D, all row strides and all pointers).
//
// Fragment layouts of mma.sync, for lane L with g = L/4 and t = L%4:
//   accumulator 16x8: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
//   A 16x16: pairs (g, 2t), (g+8, 2t), (g, 2t+8), (g+8, 2t+8);  A 16x8: the first two of these
//   B 16x8: pairs along k at (2t, g), (2t+8, g);  B 8x8: the first of these
// Two accumulators side by side, rounded to 16 bits, are thus an A operand without any exchange between lanes.

constexpr int PITCH = HEAD_DIM == 8 ? 8 : HEAD_DIM + 8; // shared row length: ldmatrix without bank conflicts
constexpr int K_STEPS = HEAD_DIM == 8 ? 1 : HEAD_DIM / 16;
[[maybe_unused]] constexpr int D_TILES = HEAD_DIM / 8;
constexpr float LOG2E = 1.4426950408889634f;
[[maybe_unused]] constexpr float LN2 = 0.6931471805599453f;

// A constant as a type, for lambdas.
template <bool VALUE> struct Flag {
    static constexpr bool value = VALUE;
};

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void mma16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEM "." ELEM ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma8(float (&d)[4], u32 a0, u32 a1, u32 b0, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." ELEM "." ELEM ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// Copies BYTES (4, 8 or 16) to shared memory in the background; writes zeros instead where `valid` is false.
template <int BYTES> __device__ __forceinline__ void copy_async(u32 to, const void* from, bool valid) {
    int take = valid ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(take) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(take) : "memory");
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Goes down the rows of a head and copies ROWS at a time into shared memory [ROWS][PITCH]; zeros past the last real row
// and past D. Every thread keeps to one column, so that a step costs few instructions.
template <int ROWS, int THREADS> struct Loader {
    static constexpr int CHUNKS = HEAD_DIM / VEC;
    static constexpr int STEP = THREADS / CHUNKS; // rows between two copies of a thread
    static_assert(THREADS % CHUNKS == 0, "a row takes a whole share of the threads");
    const half_t* source;
    long long step;
    int row;
    u32 target;

    __device__ __forceinline__ Loader(const half_t* from, int row_stride) {
        int column = threadIdx.x % CHUNKS * VEC;
        row = threadIdx.x / CHUNKS;
        source = from + (long long)row * row_stride + column;
        step = (long long)STEP * row_stride;
        target = 2 * (row * PITCH + column);
        if (column >= D) row = 1 << 30; // never real
    }

    // The next tile, of which `left` rows are real.
    __device__ __forceinline__ void load(half_t* tile, int left) {
        u32 to = shared_address(tile) + target;
#pragma unroll
        for (int j = 0; j < (ROWS + STEP - 1) / STEP; j++) {
            bool valid = row + j * STEP < left;
            if (ROWS % STEP == 0 || threadIdx.x / CHUNKS + j * STEP < ROWS) {
                if constexpr (VEC == 1) {
                    *(half_t*)((char*)tile + target + 2 * j * STEP * PITCH) = valid ? *source : (half_t)0;
                } else {
                    copy_async<2 * VEC>(to + 2 * j * STEP * PITCH, source, valid);
                }
            }
            if (ROWS % STEP == 0) source += step;
        }
        if (ROWS % STEP != 0) source += step / STEP * ROWS;
    }
};

// Elements (row, col) and (row, col + 1) of a head as one pair; zeros outside.
__device__ __forceinline__ u32 load_pair(const half_t* from, long long row_stride, int row, int rows, int col) {
    if (row >= rows) return 0;
    const half_t* p = from + row * row_stride + col;
    if constexpr (VEC > 1) {
        return col < D ? *(const u32*)p : 0u;
    } else {
        u32 low = col < D ? p[0] : 0, high = col + 1 < D ? p[1] : 0;
        return low | high << 16;
    }
}

__device__ __forceinline__ void store_pair(half_t* to, long long row_stride, int row, int rows, int col, float a, float b) {
    if (row >= rows) return;
    half_t* p = to + row * row_stride + col;
    if constexpr (VEC > 1) {
        if (col < D) *(u32*)p = pack(a, b);
    } else {
        if (col < D) p[0] = to_half(a);
        if (col + 1 < D) p[1] = to_half(b);
    }
}

// A operand of 16 rows from `row0`, one fragment for each 16 columns (for heads of 8: two registers of use).
__device__ __forceinline__ void load_rows(u32 (&a)[K_STEPS][4], const half_t* from, int row_stride, int row0, int rows, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int s = 0; s < K_STEPS; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int col = s * 16 + (i >> 1) * 8 + t * 2;
            a[s][i] = col < HEAD_DIM ? load_pair(from, row_stride, row0 + g + (i & 1) * 8, rows, col) : 0u;
        }
    }
}

// Rows times `factor` as the sum of two 16-bit numbers, for heads of 8: columns 0..8 of the operand hold the
// leading parts, columns 8..16 the remainders; the other operand repeats itself. The product then carries no
// rounding of the scaled rows.
__device__ __forceinline__ void split_rows(u32 (&a)[4], float factor) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float x = low_float(a[i]) * factor, y = high_float(a[i]) * factor;
        u32 lead = pack(x, y);
        a[i] = lead;
        a[i + 2] = pack(x - low_float(lead), y - high_float(lead));
    }
}

// Lane offsets into a [rows][PITCH] tile, in elements, for the two ways of reading B operands.
// Rows of the tile as columns of B (contraction along the head):
//   heads of 8: one ldmatrix gives 4 operands of 8 rows; else operands (b0, b1) of 2 x 8 rows for 16 columns.
__device__ __forceinline__ int rows_offset(int lane) {
    if constexpr (HEAD_DIM == 8) return lane * PITCH;
    return ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 8;
}
// Rows of the tile as rows of B (contraction along rows), read transposed:
//   heads of 8: (b0, b1) for rows 0..16, then for rows 16..32; else (b0, b1) for 2 x 8 columns of 16 rows.
__device__ __forceinline__ int columns_offset(int lane) {
    if constexpr (HEAD_DIM == 8) return lane * PITCH;
    return ((lane & 7) + (lane >> 3 & 1) * 8) * PITCH + (lane >> 4) * 8;
}

#if HEAD_DIM == 8

// Heads of 8: the matrix work is small and the exponentials decide. The softmax is taken of s = scale q (k - mean of k),
// in powers of two: then the mean of 2^s over the keys is at least 1, and |s| <= |scale q| max|k - mean|. Where that bound
// is small, no running maximum is needed: fp16 holds every 2^s that counts. A part of the exponentials comes from the
// special-function unit and the rest from the FMA units, two at a time: the matrix unit starts from 2^13 + 15 less the
// mean, which leaves in the low 16 bits the fp16 number (1 + f) 2^n for s = n + f, and one multiplication by a polynomial
// c(1 + f) = 2^f / (1 + f) makes it 2^s.

constexpr float NORMAL_BOUND = 13.9f; // every 2^s is a normal fp16 number
constexpr float FAST_BOUND = 20.f;    // after a shift that keeps the largest finite, what falls under 2^-14 does not count
constexpr float LARGEST = 15.5f;
constexpr float ROUNDING_BOUND = 32.f; // on scale q k itself: q scaled and rounded to fp16 is then good enough
constexpr float BASE = 8207.f; // 2^13 + 15
constexpr u32 MANTISSA = 0x03ff03ffu, ONE = 0x3c003c00u; // of fp16 pairs

__device__ __forceinline__ void mma16_fp16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma8_fp16(float (&d)[4], u32 a0, u32 a1, u32 b0, const float (&c)[4]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// With sums in fp16: rows g and g + 8 as pairs.
__device__ __forceinline__ void mma8_pairs(u32& d0, u32& d1, u32 a0, u32 a1, u32 b0, u32 c0, u32 c1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%5,%6};"
        : "=r"(d0), "=r"(d1)
        : "r"(a0), "r"(a1), "r"(b0), "r"(c0), "r"(c1));
}

__device__ __forceinline__ u32 pack_fp16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

__device__ __forceinline__ float fp16_low(u32 pair) {
    float y;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(y) : "r"(pair));
    return y;
}

__device__ __forceinline__ float fp16_high(u32 pair) {
    float y;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(y) : "r"(pair));
    return y;
}

__device__ __forceinline__ u32 fma_pairs(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

__device__ __forceinline__ u32 multiply_pairs(u32 a, u32 b) {
    u32 y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

// Coefficients of c for a sum that the matrix unit rounds towards zero, fp16 in both halves.
constexpr u32 EXP_C0 = 0x3f1a3f1au, EXP_C1 = 0xbd82bd82u, EXP_C2 = 0x39aa39aau, EXP_C3 = 0xaed5aed5u;

// 2^s of two sums 2^13 + 15 + s, as a pair of fp16; s above -47 if CLAMP, else above -14.
template <bool CLAMP> __device__ __forceinline__ u32 exp2_pair(float low, float high, u32 mantissa) {
    u32 linear = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
    u32 m = linear & mantissa | ONE;
    // Under 2^-15 the sign bit is set, or the number is no number: zero for both.
    if (CLAMP) asm("max.f16x2 %0, %1, %2;" : "=r"(linear) : "r"(linear), "r"(0));
    u32 c = fma_pairs(m, EXP_C3, EXP_C2);
    c = fma_pairs(c, m, EXP_C1);
    c = fma_pairs(c, m, EXP_C0);
    return multiply_pairs(linear, c);
}

// The power of two that brings x into [1, 2); at most 2^87, so that products of scales stay finite when x is zero.
__device__ __forceinline__ float unit_scale(float x) {
    int e = (int)(__float_as_uint(x) >> 23 & 255u);
    e = e < 40 ? 40 : e > 250 ? 250 : e;
    return __uint_as_float((u32)(254 - e) << 23);
}

// One row of a head of at most 8.
__device__ __forceinline__ void load_head(u32 (&x)[4], const half_t* from, int row_stride, int row) {
    if constexpr (VEC == 8) {
        uint4 y = *(const uint4*)(from + (long long)row * row_stride);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = load_pair(from, row_stride, row, row + 1, j * 2);
    }
}

// Which values of p the special-function unit computes: of tiles 0..8 along the columns, each with rows g and g + 8 of
// this lane, row g of `share` tiles, spread evenly; for a share over 8, row g of all and row g + 8 of share - 8.
__device__ constexpr bool is_special(int share, int tile, int row) {
    int tiles = row == 0 ? share : share - 8;
    return tiles >= 8 || tiles > 0 && (tile + 1) * tiles / 8 > tile * tiles / 8;
}

// The matrix unit starts a tile in one of two ways: 1 for tiles with one more special row than the others.
__device__ constexpr int start_kind(int share, int tile) { return is_special(share, tile, share > 8 ? 1 : 0); }
// Where the rows of a tile of that kind start, before the mean is subtracted.
__device__ constexpr float start_value(int share, int kind, int row) {
    return (share > 8 ? row == 0 || kind == 1 : row == 0 && kind == 1) ? 0.f : BASE;
}

// Largest |k|, mean, bound on |k - mean| and largest |v| of a head, by a block of THREADS; `scratch` is shared.
struct KeyStatistics {
    float k_top, v_top, spread, mean[8];
};

template <int THREADS>
__device__ __forceinline__ KeyStatistics key_statistics(const half_t* k, const half_t* v, int k_row, int v_row, int sk, float (*scratch)[12]) {
    KeyStatistics s = {};
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 4
    for (int i = threadIdx.x; i < sk; i += THREADS) {
        u32 x[4], y[4];
        load_head(x, k, k_row, i);
        load_head(y, v, v_row, i);
        float square = 0.f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float a = low_float(x[j]), c = high_float(x[j]);
            square = fmaf(a, a, fmaf(c, c, square));
            s.mean[2 * j] += a;
            s.mean[2 * j + 1] += c;
            s.v_top = fmaxf(s.v_top, fmaxf(fabsf(low_float(y[j])), fabsf(high_float(y[j]))));
        }
        s.k_top = fmaxf(s.k_top, square);
    }
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        s.k_top = fmaxf(s.k_top, __shfl_xor_sync(~0u, s.k_top, i));
        s.v_top = fmaxf(s.v_top, __shfl_xor_sync(~0u, s.v_top, i));
#pragma unroll
        for (int j = 0; j < 8; j++) s.mean[j] += __shfl_xor_sync(~0u, s.mean[j], i);
    }
    if (lane == 0) {
        scratch[warp][8] = s.k_top, scratch[warp][9] = s.v_top;
#pragma unroll
        for (int j = 0; j < 8; j++) scratch[warp][j] = s.mean[j];
    }
    __syncthreads();
    float length = 0.f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s.mean[j] = 0.f;
        for (int i = 0; i < THREADS / 32; i++) s.mean[j] += scratch[i][j];
        s.mean[j] /= (float)sk;
        length = fmaf(s.mean[j], s.mean[j], length);
    }
    for (int i = 0; i < THREADS / 32; i++) s.k_top = fmaxf(s.k_top, scratch[i][8]), s.v_top = fmaxf(s.v_top, scratch[i][9]);
    length = sqrtf(length), s.k_top = sqrtf(s.k_top);
    s.spread = s.k_top + length;
    if (length > 0.05f * s.k_top) {
        // The triangle inequality gives too much away: look again.
        s.spread = 0.f;
#pragma unroll 4
        for (int i = threadIdx.x; i < sk; i += THREADS) {
            u32 x[4];
            load_head(x, k, k_row, i);
            float square = 0.f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float a = low_float(x[j]) - s.mean[2 * j], c = high_float(x[j]) - s.mean[2 * j + 1];
                square = fmaf(a, a, fmaf(c, c, square));
            }
            s.spread = fmaxf(s.spread, square);
        }
#pragma unroll
        for (int i = 16; i; i >>= 1) s.spread = fmaxf(s.spread, __shfl_xor_sync(~0u, s.spread, i));
        if (lane == 0) scratch[warp][10] = s.spread;
        __syncthreads();
        for (int i = 0; i < THREADS / 32; i++) s.spread = fmaxf(s.spread, scratch[i][10]);
        s.spread = sqrtf(s.spread);
    }
    s.spread *= 1.0001f;
    return s;
}

#endif
