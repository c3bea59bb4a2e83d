// What kernels of compute capability 9.0 share: matrix products by warpgroups, copies by the tensor memory unit, and the
// barriers between them. Stands behind half.cu; compiled for sm_90a.
//
// Tiles in shared memory are rows of 128 bytes, 64 elements of 16 bits, 32 of 32 bits or 128 of 8 bits, their 16-byte pieces exchanged as the unit's 128-byte
// swizzle does: piece c of row r lies at c ^ (r % 8). With -DROW=64 they are half as long, and it lies at c ^ (r / 2 % 4). A tile
// begins at a multiple of 1024 bytes.

typedef unsigned long long u64;

// What the host encoded with cuTensorMapEncodeTiled.
struct alignas(64) TensorMap {
    u64 words[16];
};

#ifndef ROW
#define ROW 128
#endif
constexpr int ROW_BYTES = ROW;
constexpr int GROUP = 128; // threads of a warpgroup

// ---- barriers in shared memory

__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Until the phase of this parity is complete.
__device__ __forceinline__ void barrier_wait(u32 barrier, int parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "wait:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra wait;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Orders ordinary accesses before those of the copy unit and of matrix products, and the other way round.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
template <int THREADS> __device__ __forceinline__ void sync_threads(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void arrive_threads(int barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(THREADS) : "memory");
}

// ---- copies

// A box of 64 columns of a tensor [batch, rows, columns] to shared memory; rows past the end become zeros.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, u32 barrier, int column, int row, int batch) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(batch)
                 : "memory");
}

__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, u32 barrier, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(&map),
                 "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

// A box of a tensor [batch, rows, pixels, channels]; what lies outside of it becomes zeros.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, u32 barrier, int channel, int x, int y, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(batch)
                 : "memory");
}

// The other way; what lies outside is not written.
__device__ __forceinline__ void store_box(const TensorMap& map, u32 from, int channel, int x, int y, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map), "r"(from), "r"(channel),
                 "r"(x), "r"(y), "r"(batch)
                 : "memory");
}
__device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until what this thread stored has been read from shared memory; until it is written.
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 barrier, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::"r"(to), "l"(from),
                 "r"(barrier), "r"(bytes)
                 : "memory");
}

// ---- matrix products of a warpgroup, D[64][N] (+)= A[64][16] B[16][N]; of 32 bits A[64][8] B[8][N] and of 8 (FP8: e4m3; INT8: A of u8, B of i8, with
// sums of i32) A[64][32] B[32][N], never transposed
//
// Accumulators: row 16 w + g (+ 8 for i & 2) of warp w, column 8 n + 2 t + (i & 1) at [4 n + i].
// A in registers: as mma.sync's, 16 rows a warp.

// A tile whose rows run along M or N: contraction along its columns; the next 16 of these are 32 bytes on.
// Or contraction along its rows (TRANSPOSED): the next 16 of these are 2048 bytes on. Either way 8 rows are 1024 bytes.
// Columns past the 64th are `next` bytes on. The exchange of pieces goes by a byte's address alone: a tile may begin at any row
// of a larger one, and its groups of 8 rows may lie any number of rows (`group` bytes) apart.
__device__ __forceinline__ u64 describe(u32 tile, int group = 8 * ROW_BYTES, int next = 16) {
    return ((ROW_BYTES == 64 ? 2ull : 1ull) << 62) | ((u64)(group >> 4) << 32) | ((u64)(next >> 4) << 16) | ((tile & 0x3ffff) >> 4);
}
constexpr u64 ALONG_COLUMNS = 32 >> 4, ALONG_ROWS = 2048 >> 4;

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving accesses of accumulators across.
template <int COUNT> __device__ __forceinline__ void pin(float (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int COUNT> __device__ __forceinline__ void pin(int (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i])::"memory");
}
template <int COUNT> __device__ __forceinline__ void pin(u32 (&d)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
}

// Keeps the assembler from waiting before `x`, which is never negative, is known: it would rather wait early.
__device__ __forceinline__ void hold(float x, u32 anywhere) {
    asm volatile("{\n.reg .pred never;\nsetp.lt.f32 never, %0, 0f00000000;\n@never st.volatile.shared.f32 [%1], %0;\n}" ::"f"(x), "r"(anywhere)
                 : "memory");
}

#define R_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R_24 R_16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R_32 R_24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R_48 R_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R_64 R_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R_96                                                                                                       \
    R_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89" \
         ",%90,%91,%92,%93,%94,%95"
// Sums in registers of a kind.
#define D_8(kind, i) kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), kind(d[i + 6]), kind(d[i + 7])
#define D_24(kind) D_8(kind, 0), D_8(kind, 8), D_8(kind, 16)
#define D_32(kind) D_24(kind), D_8(kind, 24)
#define D_48(kind) D_32(kind), D_8(kind, 32), D_8(kind, 40)
#define D_64(kind) D_48(kind), D_8(kind, 48), D_8(kind, 56)
#define D_96(kind) D_64(kind), D_8(kind, 64), D_8(kind, 72), D_8(kind, 80), D_8(kind, 88)
// What a product adds up in; whole numbers have no signs to turn.
#ifdef INT8
typedef int Sum;
#define SUMS_OF "s32"
#define KIND "+r"
#define SIGNS ""
#else
typedef float Sum;
#define SUMS_OF "f32"
#define KIND "+f"
#define SIGNS ", 1, 1"
#endif
#if defined(FP8)
#define DEPTH "k32"
#define FACTORS "e4m3.e4m3"
#define TURNED(which) ""
#elif defined(INT8)
#define DEPTH "k32"
#define FACTORS "u8.s8"
#define TURNED(which) ""
#elif defined(ELEM_TF32)
#define DEPTH "k8"
#define FACTORS "tf32.tf32"
#define TURNED(which) ""
#else
#define DEPTH "k16"
#define FACTORS ELEM "." ELEM
#define TURNED(which) which
#endif
// Of 16 bits, whatever the others are of.
#define HALF_PRODUCT(n, registers, add, operands)                                                                                       \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n "k16.f32." ELEM "." ELEM " {" registers "}, " \
    operands ", p, 1, 1, 0, 0;\n}"
#define PRODUCT(n, registers, add, operands)                                                                                           \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n DEPTH "." SUMS_OF "." FACTORS " {" registers "}, " \
    operands ";\n}"

// A and B in shared memory. ADD: whether D is added to. TRANSPOSED_*: contraction along the tile's rows.
template <int N, int TRANSPOSED_A, int TRANSPOSED_B> __device__ __forceinline__ void product(Sum (&d)[N / 2], u64 a, u64 b, int add) {
    static_assert(N == 48 || N == 64 || N == 96 || N == 128 || N == 192, "columns of a product");
    if constexpr (N == 48)
        asm volatile(PRODUCT("48", R_24, "%26", "%24, %25, p" SIGNS TURNED(", %27, %28"))
                     : D_24(KIND)
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
    if constexpr (N == 64)
        asm volatile(PRODUCT("64", R_32, "%34", "%32, %33, p" SIGNS TURNED(", %35, %36"))
                     : D_32(KIND)
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
    if constexpr (N == 96)
        asm volatile(PRODUCT("96", R_48, "%50", "%48, %49, p" SIGNS TURNED(", %51, %52"))
                     : D_48(KIND)
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
    if constexpr (N == 128)
        asm volatile(PRODUCT("128", R_64, "%66", "%64, %65, p" SIGNS TURNED(", %67, %68"))
                     : D_64(KIND)
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
    if constexpr (N == 192)
        asm volatile(PRODUCT("192", R_96, "%98", "%96, %97, p" SIGNS TURNED(", %99, %100"))
                     : D_96(KIND)
                     : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));
}

#if defined(FP8) || defined(INT8)
// The same of 16 bits, with sums of fp32; INT8: in the registers of whole numbers.
template <int N> __device__ __forceinline__ void half_product(Sum (&d)[N / 2], u64 a, u64 b, int add) {
    static_assert(N == 48 || N == 64 || N == 96 || N == 128, "columns of a product");
    if constexpr (N == 48) asm volatile(HALF_PRODUCT("48", R_24, "%26", "%24, %25") : D_24(KIND) : "l"(a), "l"(b), "r"(add));
    if constexpr (N == 64) asm volatile(HALF_PRODUCT("64", R_32, "%34", "%32, %33") : D_32(KIND) : "l"(a), "l"(b), "r"(add));
    if constexpr (N == 96) asm volatile(HALF_PRODUCT("96", R_48, "%50", "%48, %49") : D_48(KIND) : "l"(a), "l"(b), "r"(add));
    if constexpr (N == 128) asm volatile(HALF_PRODUCT("128", R_64, "%66", "%64, %65") : D_64(KIND) : "l"(a), "l"(b), "r"(add));
}
#endif

// A in registers.
template <int N, int TRANSPOSED_B> __device__ __forceinline__ void product(Sum (&d)[N / 2], const u32 (&a)[4], u64 b, int add) {
    if constexpr (N == 64)
        asm volatile(PRODUCT("64", R_32, "%37", "{%32, %33, %34, %35}, %36, p" SIGNS TURNED(", %38"))
                     : D_32(KIND)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED_B));
    else
        asm volatile(PRODUCT("128", R_64, "%69", "{%64, %65, %66, %67}, %68, p" SIGNS TURNED(", %70"))
                     : D_64(KIND)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED_B));
}

template <int REGISTERS> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
