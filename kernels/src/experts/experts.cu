// Expert products over the tables that `route` wrote: gate and up with SiLU-mul, or down, for each (row,
// slot) pair.
//
// Weight-stationary: work items are (expert, rows of its matrix, columns of pairs), found on the device from
// the offsets, so nothing waits for the host and an expert nobody chose costs a compare. The sums are those
// of `linear` (mma_tile.cuh): a pair's result does not depend on who else chose the expert. `experts_gemv`
// streams an expert's tiles with a warp a slice of K, eight pairs at a time (the second eight find the
// weights in the last cache); `experts_tile` stages 8 NB pairs for a block of tiles.
//
// Constants: K_DIM, N_DIM (of one expert), FMT, UP_FMT (of the up matrices, where it is not FMT), EXPERTS,
// TOP_K, PAIR (1: gate and up), EPI, BY_PAIR (rows are pairs).
#include "mma_tile.cuh"

#ifndef UP_FMT
#define UP_FMT FMT
#endif

[[maybe_unused]] constexpr int SLICES = slices_of(K_DIM);
constexpr int TILES = (N_DIM + 15) / 16;
constexpr bool FULL = N_DIM % 16 == 0;
constexpr bool MIXED = PAIR && UP_FMT != FMT;
static_assert(EXPERTS <= 1024, "the prefix of a block is four counts a lane at most");

/// first[i]: items before the i-th expert that has pairs; id[i]: that expert. `EACH` pairs make an item
/// column.
struct ActiveList {
    u32 first[EXPERTS + 1];
    u32 id[EXPERTS];
    u32 count;
};

/// Fills the list, one warp; the block syncs afterwards.
template <int EACH> DEV void list_active(ActiveList& list, const u32* offsets) {
    u32 lane = threadIdx.x & 31, items = 0, active = 0;
    for (u32 e0 = 0; e0 < EXPERTS; e0 += 32) {
        u32 e = e0 + lane, pairs = e < EXPERTS ? offsets[e + 1] - offsets[e] : 0;
        u32 mine = (pairs + EACH - 1) / EACH, sum = mine;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            u32 other = __shfl_up_sync(0xffffffffu, sum, by);
            if (lane >= u32(by)) sum += other;
        }
        u32 some = __ballot_sync(0xffffffffu, pairs > 0);
        u32 at = active + __popc(some & ((1u << lane) - 1));
        if (pairs > 0) list.id[at] = e, list.first[at] = items + sum - mine;
        items += __shfl_sync(0xffffffffu, sum, 31);
        active += __popc(some);
    }
    if (lane == 0) list.count = active, list.first[active] = items;
}

/// Index in the list of the expert that column `c` belongs to.
DEV u32 find_expert(const ActiveList& list, u32 c) {
    u32 low = 0, high = list.count - 1;
    while (low < high) {
        u32 middle = (low + high + 1) / 2;
        if (list.first[middle] <= c) low = middle;
        else high = middle - 1;
    }
    return low;
}

/// The input row of a pair.
DEV u32 row_of(u32 pair) { return BY_PAIR ? pair : pair / TOP_K; }

/// The experts' matrices, each kind behind the other, and where the results go.
struct Tables {
    const u16* x;
    const u8 *w, *up;
    u32 bytes, up_bytes;
    const u32 *offsets, *list;
    void* out;
    DEV const u8* matrix(bool second, u32 e) const {
        return second ? up + u64(e) * up_bytes : w + u64(e) * bytes;
    }
};
#define TABLES                                                                                           \
    const u16 *x, const u8 *w, const u8 *up, u32 bytes, u32 up_bytes, const u32 *offsets, const u32 *list, \
        void *out

#ifdef GEMV
// CFG_PRE: the last cache is asked for all of this item's weights, and the next one's before this one's
// product.
#ifndef CFG_PRE
#define CFG_PRE 0
#endif
constexpr int R = CFG_R, THREADS = 32 * SLICES * R, OUT_TILES = PAIR ? R / 2 : R;
constexpr int GROUPS = (TILES + OUT_TILES - 1) / OUT_TILES;

/// All items of this block, its warp's tiles being of format F: all warps take the same turns and barriers.
template <int F> DEV void stream_items(const Tables& in, const ActiveList& active, float* parts) {
    using W = Weights<F, K_DIM, FULL>;
    constexpr int UNITS = units_of(K_DIM, W::UNIT), DEPTH = W::UNIT > 32 ? (CFG_U + 1) / 2 : CFG_U;
    Lane l;
    u32 warp = threadIdx.x / 32, slice = warp % SLICES, r = warp / SLICES, items = active.count * GROUPS;
    u32 item = blockIdx.x, group = 0, begin = 0, pairs = 0;
    if (item >= items) return;
    u32 u0 = slice_begin(UNITS, SLICES, slice), u1 = u0;
    // The item's expert, group of tiles and pairs; this warp's tile in it.
    auto locate = [&] {
        u32 e = active.id[item / GROUPS];
        group = item % GROUPS, begin = in.offsets[e], pairs = in.offsets[e + 1] - begin;
        u32 row0 = 16 * (group * OUT_TILES + (PAIR ? r / 2 : r));
        u1 = row0 < N_DIM ? slice_begin(UNITS, SLICES, slice + 1) : u0;
        return typename W::Src(in.matrix(PAIR && (r & 1), e), N_DIM, row0 < N_DIM ? row0 : 0, l);
    };
    auto fetch = [&](u32 of) {
        if (!CFG_PRE || !FULL || of >= items) return;
        u32 row0 = 16 * (of % GROUPS * OUT_TILES + (PAIR ? r / 2 : r));
        if (row0 < N_DIM)
            fetch_piece<F, K_DIM>(in.matrix(PAIR && (r & 1), active.id[of / GROUPS]), row0, slice, SLICES);
    };
    fetch(item);
    typename W::Src src[1] = {locate()};
    Stream<W, 1, DEPTH> stream;
    stream.prime(src, u0, u1);
    for (u32 c = 0;;) {
        u32 columns = min(pairs - c, 8u), first = begin + c, tile0 = group * OUT_TILES;
        const u16* row = in.x + u64(row_of(in.list[first + (l.g < columns ? l.g : 0)])) * K_DIM;
        float acc[1][1][4] = {};
        if (c + 8 >= pairs) fetch(item + gridDim.x);
        stream.template run<1>(src, u0, u1, GlobalRows<K_DIM, W::SPLIT, CFG_ONE>(row, l, W::BIAS), acc,
                               [](u32) {});
        // The next weights are on their way while this item is merged and stored.
        c += 8;
        if (c >= pairs) {
            item += gridDim.x, c = 0;
            if (item < items) src[0] = locate();
        }
        if (item < items) stream.prime(src, u0, u1);
        put_part(parts + warp * PART, l, acc[0][0]);
        __syncthreads();
        for (u32 i = threadIdx.x; i < OUT_TILES * 16 * columns; i += THREADS) {
            u32 row = i % 16, t = i / 16 % OUT_TILES, col = i / 16 / OUT_TILES, at = 16 * (tile0 + t) + row;
            if (at >= N_DIM) continue;
            const float* from = parts + (PAIR ? 2 * t : t) * (SLICES * PART);
            float y = sum_parts<SLICES>(from, row, col);
            float y2 = PAIR ? sum_parts<SLICES>(from + SLICES * PART, row, col) : 0;
            finish(EPI, in.out, u64(in.list[first + col]) * N_DIM + at, y, y2);
        }
        if (item >= items) return;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, CFG_MIN_BLOCKS)
experts_gemv(TABLES) {
    __shared__ float parts[R * SLICES * PART];
    __shared__ ActiveList active;
    pdl_launch();
    pdl_wait();
    if (threadIdx.x < 32) list_active<1 << 30>(active, offsets);
    __syncthreads();
    Tables in = {x, w, up, bytes, up_bytes, offsets, list, out};
    if (MIXED && (threadIdx.x / 32 / SLICES & 1)) stream_items<UP_FMT>(in, active, parts);
    else stream_items<FMT>(in, active, parts);
}
#endif

#ifdef TILE
// As `linear_tile`: WARPS warps of MT tiles (gate and up of one tile, or two tiles of down), 8 NB pairs.
constexpr int WARPS = CFG_WARPS, MT = CFG_MT, NB = CFG_NB, KC = CFG_KC, STAGES = CFG_STAGES;
constexpr int EACH = WARPS * (PAIR ? 1 : MT), GROUPS = (TILES + EACH - 1) / EACH;

DEV void store_pairs(const float (&y)[MT][NB][4], const u32 (&row0)[MT], const u32* pair, void* out) {
    Lane l;
#pragma unroll
    for (int m = 0; m < (PAIR ? 1 : MT); m++)
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 row = row0[m] + l.g + 8 * (i >> 1), p = pair[8 * n + 2 * l.t + (i & 1)];
                if (row < N_DIM && p != 0xffffffffu)
                    finish(EPI, out, u64(p) * N_DIM + row, y[m][n][i], y[MT - 1][n][i]);
            }
}

/// y = M tiles of format F of this item; `ready` lists its pairs.
template <int F, int M, class Ready>
DEV void item_product(const u8* const (&matrix)[M], const u32 (&row0)[M], bool mine, const u16* x, u32* index,
                      u8* shared, Ready ready, float (&y)[M][NB][4]) {
    constexpr int UNITS = units_of(K_DIM, Weights<F, K_DIM, FULL>::UNIT);
    staged_product<F, K_DIM, FULL, M, NB, KC, STAGES, 1>(matrix, row0, N_DIM, mine, x, index, shared, 0,
                                                         UNITS, ready, y);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, CFG_MIN_BLOCKS)
experts_tile(TABLES) {
    SPARK_DYNAMIC_SHARED(shared);
    __shared__ ActiveList active;
    __shared__ u32 index[8 * NB], pair[8 * NB];
    pdl_launch();
    pdl_wait();
    if (threadIdx.x < 32) list_active<8 * NB>(active, offsets);
    __syncthreads();
    Tables in = {x, w, up, bytes, up_bytes, offsets, list, out};
    u32 items = active.first[active.count] * GROUPS, warp = threadIdx.x / 32;
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        // All row groups of one column of pairs follow each other: they share the rows, and the next column
        // of the same expert finds its weights in the last cache.
        u32 column = item / GROUPS, group = item % GROUPS, i = find_expert(active, column), e = active.id[i];
        u32 begin = offsets[e] + (column - active.first[i]) * (8 * NB), end = offsets[e + 1];
        u32 tile = group * EACH + warp * (PAIR ? 1 : MT);
        bool mine = tile < TILES;
        const u8* matrix[MT];
        u32 row0[MT], safe[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            matrix[m] = in.matrix(PAIR && m == 1, e);
            row0[m] = 16 * (PAIR ? tile : tile + m);
            safe[m] = row0[m] < N_DIM ? row0[m] : 0;
        }
        auto ready = [&] {
            for (u32 c = threadIdx.x; c < 8 * NB; c += 32 * WARPS) {
                bool some = begin + c < end;
                pair[c] = some ? list[begin + c] : 0xffffffffu;
                index[c] = some ? row_of(pair[c]) : 0xffffffffu;
            }
            __syncthreads();
            return true;
        };
        float y[MT][NB][4] = {};
        if constexpr (MIXED) {
            // One after the other, each through the same stages.
            const u8 *gate[1] = {matrix[0]}, *other[1] = {matrix[MT - 1]};
            u32 at[1] = {safe[0]};
            float y0[1][NB][4] = {}, y1[1][NB][4] = {};
            item_product<FMT, 1>(gate, at, mine, x, index, shared, ready, y0);
            item_product<UP_FMT, 1>(other, at, mine, x, index, shared, [] { return true; }, y1);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) y[0][n][i] = y0[0][n][i], y[MT - 1][n][i] = y1[0][n][i];
        } else {
            item_product<FMT, MT>(matrix, safe, mine, x, index, shared, ready, y);
        }
        if (mine) store_pairs(y, row0, pair, out);
        __syncthreads();
    }
}
#endif
