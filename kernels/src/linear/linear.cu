// Matrix products that share their input rows: `out[r, n] = epilogue(sum_k x[r, k] * w[n, k])`.
//
// Three kernels, one reduction tree (mma_tile.cuh). `linear_gemv`: up to 8 rows; a block is R tiles of 16
// weight rows times the slices of K, a warp each, merged through shared memory; weights go from memory to
// registers and nothing waits for the rows until the first weights are on their way. `linear_tile`: more
// rows; a warp holds MT tiles and all columns of the block, rows are staged. `linear_exact`: f32 rows with
// f32 or 16-bit weights by fused adds.
//
// Constants: K_DIM; for part i P<i>_FMT, P<i>_N, P<i>_EPI and, where it is not P<i>_FMT, P<i>_UP (the format
// of the up matrix); OUT_ROWS (1: the head's rows).
#include "mma_tile.cuh"

#ifndef P1_N
#define P1_FMT P0_FMT
#define P1_N 0
#define P1_EPI 0
#endif
#ifndef P2_N
#define P2_FMT P0_FMT
#define P2_N 0
#define P2_EPI 0
#endif
#ifndef P3_N
#define P3_FMT P0_FMT
#define P3_N 0
#define P3_EPI 0
#endif
#ifndef P0_UP
#define P0_UP P0_FMT
#endif
#ifndef P1_UP
#define P1_UP P1_FMT
#endif
#ifndef P2_UP
#define P2_UP P2_FMT
#endif
#ifndef P3_UP
#define P3_UP P3_FMT
#endif
#ifndef OUT_ROWS
#define OUT_ROWS 0
#endif
#ifndef CFG_MIN_BLOCKS
#define CFG_MIN_BLOCKS 1
#endif

[[maybe_unused]] constexpr int SLICES = slices_of(K_DIM);
constexpr bool is_silu(int epilogue) { return epilogue >= SILU_MUL; }
constexpr int tiles(int n) { return (n + 15) / 16; }

/// The part a block works on; `format` that of `w`, `up_format` that of `up`.
struct Part {
    const u8 *w, *up;
    void* out;
    u32 n, block;
    int format, up_format, epilogue;
};

#define PART_ARGS                                                                                            \
    const u8 *w0, const u8 *u0, void *o0, const u8 *w1, const u8 *u1, void *o1, const u8 *w2, const u8 *u2, \
        void *o2, const u8 *w3, const u8 *u3, void *o3

#define THE_PART(i, block) \
    Part { w##i, u##i, o##i, P##i##_N, (block), P##i##_FMT, P##i##_UP, P##i##_EPI }
/// Finds the part of block `b`, where part i has `b<i>` blocks.
#define FIND_PART(part, b, b0, b1, b2)                                         \
    Part part = THE_PART(0, (b));                                              \
    if (P1_N > 0 && (b) >= (b0)) part = THE_PART(1, (b) - (b0));               \
    if (P2_N > 0 && (b) >= (b0) + (b1)) part = THE_PART(2, (b) - (b0) - (b1)); \
    if (P3_N > 0 && (b) >= (b0) + (b1) + (b2)) part = THE_PART(3, (b) - (b0) - (b1) - (b2));

/// Whether part (n, f, up) has a matrix of format `want` with rows that are (not) whole tiles.
constexpr bool has(int n, int f, int up, int want, bool full) {
    return n > 0 && (f == want || up == want) && (n % 16 == 0) == full;
}
constexpr bool used(int f, bool full) {
    return has(P0_N, P0_FMT, P0_UP, f, full) || has(P1_N, P1_FMT, P1_UP, f, full) ||
           has(P2_N, P2_FMT, P2_UP, f, full) || has(P3_N, P3_FMT, P3_UP, f, full);
}
/// Runs `CALL(F, FULL)` for a format and row count; formats of no part leave no code.
#define DISPATCH(f, n, CALL)                                                                            \
    DISPATCH1(f, n, CALL, F32) DISPATCH1(f, n, CALL, F16) DISPATCH1(f, n, CALL, BF16)                   \
    DISPATCH1(f, n, CALL, Q8_0) DISPATCH1(f, n, CALL, Q4_K) DISPATCH1(f, n, CALL, Q5_K)                 \
    DISPATCH1(f, n, CALL, Q6_K) DISPATCH1(f, n, CALL, Q2_K)
#define DISPATCH1(f, n, CALL, F)                                                          \
    if constexpr (used(F, true)) if ((f) == F && (n) % 16 == 0) { CALL(F, true) }         \
    if constexpr (used(F, false)) if ((f) == F && (n) % 16 != 0) { CALL(F, false) }

/// Whether some gate has another format than its up matrix.
[[maybe_unused]] constexpr bool MIXED = P0_UP != P0_FMT || P1_UP != P1_FMT || P2_UP != P2_FMT ||
    P3_UP != P3_FMT;

DEV u32 step_rows(const Shape* shape) { return OUT_ROWS ? shape->out_rows : shape->rows; }

#ifdef GEMV
// CFG_ONE: the step has one row; CFG_R tiles a block, CFG_U units of 32 values in flight (half as many of the
// longer units), CFG_S slices a warp; CFG_PRE: the last cache is asked for all of a tile first.
// CFG_LATE: the next launch may come in when the weights are read, not when all blocks have begun.
#ifndef CFG_LATE
#define CFG_LATE 0
#endif
#ifndef CFG_PRE
#define CFG_PRE 0
#endif
#ifndef CFG_S
#define CFG_S 1
#endif
constexpr int R = CFG_R, U = CFG_U, S = CFG_S, THREADS = 32 * (SLICES / S) * R;
static_assert(SLICES % S == 0, "each warp has as many slices");

/// Blocks of a part: R tiles a block, where gate and up count two.
constexpr u32 gemv_blocks(int n, int epilogue) {
    int each = is_silu(epilogue) ? R / 2 : R;
    return each == 0 ? 0 : u32((tiles(n) + each - 1) / each);
}

/// This warp's slices of one tile, each to its part; waits for the previous kernel after its first loads.
template <int F, bool FULL>
DEV u32 gemv_slices(const u8* matrix, u32 n, u32 row0, u32 slice, bool active, const Shape* shape,
                    const u16* x, float* parts) {
    using W = Weights<F, K_DIM, FULL>;
    constexpr int UNITS = units_of(K_DIM, W::UNIT);
    constexpr int DEPTH = W::UNIT > 32 ? (U + 1) / 2 : U;
    Lane l;
    u32 begin = slice_begin(UNITS, SLICES, slice);
    u32 end = active ? slice_begin(UNITS, SLICES, slice + S) : begin;
    if (CFG_PRE && FULL && active) fetch_piece<F, K_DIM>(matrix, row0, slice / S, SLICES / S);
    typename W::Src src[1] = {typename W::Src(matrix, n, active ? row0 : 0, l)};
    Stream<W, 1, DEPTH> stream;
    stream.prime(src, begin, end);
    pdl_wait();
    u32 rows = min(step_rows(shape), 8u);
    GlobalRows<K_DIM, W::SPLIT, CFG_ONE> b(x + u64(l.g < rows ? l.g : 0) * K_DIM, l, W::BIAS);
    run_slices<S, UNITS, SLICES>(stream, src, slice, begin, end, b, parts, l);
    return rows;
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_MIN_BLOCKS)
linear_gemv(const Shape* shape, const u16* x, PART_ARGS) {
    __shared__ float parts[R * SLICES * PART];
    if (!CFG_LATE) pdl_launch();
    FIND_PART(part, blockIdx.x, gemv_blocks(P0_N, P0_EPI), gemv_blocks(P1_N, P1_EPI),
              gemv_blocks(P2_N, P2_EPI))
    u32 warp = threadIdx.x / 32, slice = warp % (SLICES / S) * S, r = warp / (SLICES / S);
    bool pair = is_silu(part.epilogue);
    u32 row0 = 16 * (pair ? part.block * (R / 2) + r / 2 : part.block * R + r);
    const u8* matrix = pair && (r & 1) ? part.up : part.w;
    u32 rows = 0;
    float* to = parts + warp * S * PART;
#define SLICE(F, FULL) \
    rows = gemv_slices<F, FULL>(matrix, part.n, row0, slice, row0 < part.n, shape, x, to);
    DISPATCH(pair && (r & 1) ? part.up_format : part.format, part.n, SLICE)
    __syncthreads();
    if (CFG_LATE) pdl_launch();
    u32 outputs = pair ? R / 2 : R;
    for (u32 i = threadIdx.x; i < outputs * 16 * rows; i += THREADS) {
        u32 row = i % 16, tile = i / 16 % outputs, col = i / 16 / outputs;
        u32 at = 16 * (part.block * outputs + tile) + row;
        if (at >= part.n) continue;
        const float* from = parts + (pair ? 2 * tile : tile) * (SLICES * PART);
        float y = sum_parts<SLICES>(from, row, col);
        float y2 = pair ? sum_parts<SLICES>(from + SLICES * PART, row, col) : 0;
        finish(part.epilogue, part.out, u64(col) * part.n + at, y, y2);
    }
}
#endif

#ifdef TILE
// WARPS warps of MT tiles, 8 NB columns, chunks of KC values in STAGES buffers, weights AHEAD chunks before
// their use; SPLIT_K: a block is one slice.
constexpr int WARPS = CFG_WARPS, MT = CFG_MT, NB = CFG_NB, KC = CFG_KC, STAGES = CFG_STAGES,
              AHEAD = CFG_AHEAD;
constexpr bool SPLIT_K = CFG_SPLIT_K;

constexpr u32 tile_blocks(int n, int epilogue) {
    int each = WARPS * (is_silu(epilogue) ? 1 : MT);
    return u32((tiles(n) + each - 1) / each);
}

/// Publishes this warp's slice of its tiles; true in the warp that comes last, once all slices are there.
DEV bool publish(const float (&acc)[MT][NB][4], float4* mine, u32* counter, u32 slice) {
    u32 lane = threadIdx.x & 31, arrived = 0;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NB; n++) {
            const float(&c)[4] = acc[m][n];
            mine[((slice * MT + m) * NB + n) * 32 + lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
    __threadfence();
    __syncwarp();
    if (lane == 0) arrived = atomicAdd(counter, 1u);
    arrived = __shfl_sync(0xffffffffu, arrived, 0);
    if (arrived != SLICES - 1) return false;
    __threadfence();
    if (lane == 0) *counter = 0;
    return true;
}

/// Sum of the slices of one fragment in index order.
DEV float4 merged(const float4* mine, u32 m, u32 n) {
    float4 part[SLICES], sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < SLICES; s++)
        part[s] = ld_fresh4((const float*)(mine + ((s * MT + m) * NB + n) * 32 + (threadIdx.x & 31)));
#pragma unroll
    for (int s = 0; s < SLICES; s++)
        sum.x += part[s].x, sum.y += part[s].y, sum.z += part[s].z, sum.w += part[s].w;
    return sum;
}

/// Adds the slices and stores them, two fragments at a time: the registers of the product are free by now.
DEV void merge_store(const Part& part, const u32 (&row0)[MT], const float4* mine, u32 col0, u32 rows) {
    Lane l;
    bool pair = is_silu(part.epilogue);
#pragma unroll 1
    for (u32 m = 0; m < (pair ? 1 : MT); m++)
#pragma unroll 2
        for (u32 n = 0; n < NB; n++) {
            float4 y = merged(mine, m, n), y2 = y;
            if (pair) y2 = merged(mine, MT - 1, n);
            u32 row = (m ? row0[MT - 1] : row0[0]) + l.g, col = col0 + 8 * n + 2 * l.t;
            auto put = [&](u32 r, u32 c, float v, float v2) {
                if (r < part.n && c < rows) finish(part.epilogue, part.out, u64(c) * part.n + r, v, v2);
            };
            put(row, col, y.x, y2.x), put(row, col + 1, y.y, y2.y);
            put(row + 8, col, y.z, y2.z), put(row + 8, col + 1, y.w, y2.w);
        }
}

/// Stores a warp's results: its tiles are MT row tiles, or gate and up of one.
DEV void tile_store(const Part& part, const u32 (&row0)[MT], const float (&y)[MT][NB][4], u32 col0,
                    u32 rows) {
    Lane l;
    bool pair = is_silu(part.epilogue);
#pragma unroll
    for (int m = 0; m < MT; m++) {
        if (pair && m > 0) break;
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = row0[m] + l.g + 8 * (i >> 1), col = col0 + 8 * n + 2 * l.t + (i & 1);
                if (row < part.n && col < rows)
                    finish(part.epilogue, part.out, u64(col) * part.n + row, y[m][n][i], y[MT - 1][n][i]);
            }
    }
}

/// What the threads of a tile block share.
struct TileBlock {
    const Shape* shape;
    const u16* x;
    u32* index;
    u8* shared;
    u32 col0, slice, rows;
    /// Waits for the previous kernel and lists the columns' rows; false where there are none.
    DEV bool ready() {
        pdl_wait();
        rows = step_rows(shape);
        for (u32 i = threadIdx.x; i < 8 * NB; i += 32 * WARPS)
            index[i] = col0 + i < rows ? col0 + i : 0xffffffffu;
        __syncthreads();
        return col0 < rows;
    }
};

/// y = this block's units of M tiles of one format; false where the block has no columns.
template <int F, bool FULL, int M>
DEV bool tile_product(const u8* const (&matrix)[M], const u32 (&row0)[M], u32 n, bool active, TileBlock& b,
                      bool first, float (&y)[M][NB][4]) {
    constexpr int UNITS = units_of(K_DIM, Weights<F, K_DIM, FULL>::UNIT);
    u32 begin = SPLIT_K ? slice_begin(UNITS, SLICES, b.slice) : 0;
    u32 end = SPLIT_K ? slice_begin(UNITS, SLICES, b.slice + 1) : UNITS;
    return staged_product<F, K_DIM, FULL, M, NB, KC, STAGES, AHEAD>(
        matrix, row0, n, active, b.x, b.index, b.shared, begin, end,
        [&] { return first ? b.ready() : true; }, y);
}

/// A pair of two formats: one product after the other.
DEV bool mixed_pair(const Part& part, u32 row0, bool active, TileBlock& b, float (&y)[MT][NB][4]) {
#pragma unroll 1
    for (int m = 0; m < 2; m++) {
        const u8* matrix[1] = {m ? part.up : part.w};
        u32 at[1] = {row0};
        float sum[1][NB][4] = {};
        bool any = false;
#define ONE_OF_PAIR(F, FULL) any = tile_product<F, FULL, 1>(matrix, at, part.n, active, b, m == 0, sum);
        DISPATCH(m ? part.up_format : part.format, part.n, ONE_OF_PAIR)
        if (!any) return false;
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[0][n][i] = m ? y[0][n][i] : sum[0][n][i];
                y[MT - 1][n][i] = sum[0][n][i];
            }
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, CFG_MIN_BLOCKS)
linear_tile(const Shape* shape, const u16* x, u32 column_tiles, float4* partials, u32* counters, PART_ARGS) {
    SPARK_DYNAMIC_SHARED(shared);
    __shared__ u32 index[8 * NB];
    pdl_launch();
    // Column tiles of the same weight rows are neighbours: the second one finds the weights in the last
    // cache.
    u32 column = blockIdx.x % column_tiles, block = blockIdx.x / column_tiles, warp = threadIdx.x / 32;
    FIND_PART(part, block, tile_blocks(P0_N, P0_EPI), tile_blocks(P1_N, P1_EPI), tile_blocks(P2_N, P2_EPI))
    TileBlock b = {shape, x, index, shared, 8 * NB * column, blockIdx.y, 0};
    bool pair = is_silu(part.epilogue);
    u32 tile = (part.block * WARPS + warp) * (pair ? 1 : MT);
    bool active = 16 * tile < part.n, any = false;
    const u8* matrix[MT];
    u32 row0[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        matrix[m] = pair && m == 1 ? part.up : part.w;
        row0[m] = 16 * (pair ? tile : tile + m);
        if (row0[m] >= part.n) row0[m] = pair || m == 0 ? 0 : row0[0];
    }
    float y[MT][NB][4] = {};
#define TILE_PART(F, FULL) any = tile_product<F, FULL, MT>(matrix, row0, part.n, active, b, true, y);
    if (MIXED && pair && part.format != part.up_format) any = mixed_pair(part, row0[0], active, b, y);
    else {
        DISPATCH(part.format, part.n, TILE_PART)
    }
    if (!any || !active) return;
#pragma unroll
    for (int m = 0; m < MT; m++) row0[m] = 16 * (pair ? tile : tile + m);
    if (SPLIT_K) {
        u32 at = blockIdx.x * WARPS + warp;
        float4* mine = partials + u64(at) * (SLICES * MT * NB * 32);
        if (publish(y, mine, counters + at, b.slice)) merge_store(part, row0, mine, b.col0, b.rows);
    } else {
        tile_store(part, row0, y, b.col0, b.rows);
    }
}
#endif

#ifdef EXACT
constexpr int WARPS = CFG_WARPS, XN = CFG_XN, XM = CFG_XM;

constexpr u32 STEPS = (K_DIM + 127) / 128, BYTES = P0_FMT == F32 ? 4 : 2;
/// Steps whose weights are on their way before the rows are waited for.
constexpr u32 EARLY = 16 / XN < STEPS ? 16 / XN : STEPS;

/// Four values of a weight row as stored, and as f32.
DEV uint4 exact_load(const u8* row, u32 k) {
    if (K_DIM % 128 != 0 && k >= K_DIM) return make_uint4(0, 0, 0, 0);
    if (BYTES == 4) return ld16_stream(row + 4 * k);
    uint2 v = ld8_stream(row + 2 * k);
    return make_uint4(v.x, v.y, 0, 0);
}
DEV float4 exact_values(uint4 v) {
    if (P0_FMT == F32)
        return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                           __uint_as_float(v.w));
    if (P0_FMT == BF16) return make_float4(bf16_lo(v.x), bf16_hi(v.x), bf16_lo(v.y), bf16_hi(v.y));
    return make_float4(f16_to_f32(u16(v.x)), f16_to_f32(u16(v.x >> 16)), f16_to_f32(u16(v.y)),
                       f16_to_f32(u16(v.y >> 16)));
}

/// A warp: XN weight rows by XM input rows. Lane l adds values 128 i + 4 l .. + 4 in order of i, then lanes
/// by halves.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
linear_exact(const Shape* shape, const float* x, const u8* w, float* out) {
    pdl_launch();
    u32 lane = threadIdx.x & 31, n0 = (blockIdx.x * WARPS + threadIdx.x / 32) * XN, m0 = blockIdx.y * XM;
    const u8* row[XN];
    uint4 early[EARLY][XN];
#pragma unroll
    for (u32 n = 0; n < XN; n++) row[n] = w + u64(min(n0 + n, P0_N - 1u)) * (K_DIM * BYTES);
#pragma unroll
    for (u32 i = 0; i < EARLY; i++)
#pragma unroll
        for (u32 n = 0; n < XN; n++) early[i][n] = exact_load(row[n], 128 * i + 4 * lane);
    pdl_wait();
    u32 rows = step_rows(shape);
    if (n0 >= P0_N || m0 >= rows) return;
    float acc[XN][XM] = {};
    auto step = [&](u32 i, const uint4(&v)[XN]) {
        u32 k = 128 * i + 4 * lane;
        if (K_DIM % 128 != 0 && k >= K_DIM) return;
#pragma unroll
        for (u32 m = 0; m < XM; m++) {
            float4 b = *(const float4*)(x + u64(min(m0 + m, rows - 1)) * K_DIM + k);
#pragma unroll
            for (u32 n = 0; n < XN; n++) {
                float4 a = exact_values(v[n]);
                acc[n][m] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, acc[n][m]))));
            }
        }
    };
#pragma unroll
    for (u32 i = 0; i < EARLY; i++) step(i, early[i]);
#pragma unroll 4
    for (u32 i = EARLY; i < STEPS; i++) {
        uint4 v[XN];
#pragma unroll
        for (u32 n = 0; n < XN; n++) v[n] = exact_load(row[n], 128 * i + 4 * lane);
        step(i, v);
    }
#pragma unroll
    for (u32 m = 0; m < XM; m++)
#pragma unroll
        for (u32 n = 0; n < XN; n++) {
            float y = warp_sum(acc[n][m]);
            if (lane == 0 && n0 + n < P0_N && m0 + m < rows)
                finish(P0_EPI, out, u64(m0 + m) * P0_N + n0 + n, y, 0);
        }
}
#endif
