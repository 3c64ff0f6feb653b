// One unit of attention: 128 tokens of one key head against M query rows, on tensor cores.
//
// **Tree** (the same for decode and prefill, whatever the grid): a unit is computed from scratch: scores in
// steps of 16 dimensions in order, the unit's maximum, p = 2^(s - max) split into two BF16 terms (so 16 bits
// of p survive), then p V in steps of 16 tokens in order, first the high terms; the sum of p is one more
// column of that product, a column of ones. Units merge in order into runs of eight, runs merge in order. A
// row's result therefore depends on its own length only.
//
// **Trick**: K and V tiles of STAGE tokens pass through one ring of buffers, so that copies never stop
// between the two products, and the warps of a block share a tile either by tokens (scores) or by columns
// (values).
//
// Defines: HEAD_DIM, GROUP (query heads a key head), KV_HEADS, WARPS, MT (tiles of 16 rows), STAGE, STAGES,
// GATED, OUT_BF16.
#pragma once
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 D = HEAD_DIM, UNIT = 128, RUN = 8, THREADS = 32 * WARPS, M = 16 * MT;
constexpr u32 PARTS = WARPS / MT;                               // warps that share 16 rows
constexpr u32 HALVES = UNIT / STAGE;                            // tiles of a unit
constexpr u32 SCORERS = PARTS < STAGE / 8 ? PARTS : STAGE / 8;  // of these, how many score a tile
constexpr u32 TOKENS = STAGE / SCORERS;                         // tokens of a tile that a warp scores
constexpr u32 COLUMNS = D / PARTS;                              // columns of V that a warp sums
constexpr u32 SN = TOKENS / 8, ON = COLUMNS / 8;
constexpr u32 CHUNKS = D / 8;  // 16-byte pieces of a token
constexpr u32 SWIZZLE = (CHUNKS < 8 ? CHUNKS : 8) - 1;
constexpr u32 Q_STRIDE = D + 8, P_STRIDE = UNIT + 8;  // odd multiples of 16 bytes: no bank conflicts
constexpr u32 TILE_BYTES = STAGE * D * 2;
/// How far loops unroll: blocks of several tiles and wide heads need their registers for results.
constexpr int FAR = MT == 1 && D < 512 ? 4 : 2, NEAR = MT == 1 && D < 512 ? 2 : 1;
static_assert(TOKENS % 8 == 0 && COLUMNS % 16 == 0 && D % 32 == 0 && WARPS % MT == 0, "shape of a block");

/// The parts of the block's dynamic shared memory. `attend/cuda.rs` computes the same sizes.
struct Room {
    u8* ring;     // [STAGES][STAGE][D] bf16
    u16* q;       // [M][Q_STRIDE]
    u16* high;    // [M][P_STRIDE]
    u16* low;     // [M][P_STRIDE]
    float* most;  // [PARTS][M]
    u32* rest;
    DEV Room(u8* base) {
        ring = base;
        q = (u16*)(ring + STAGES * TILE_BYTES);
        high = q + M * Q_STRIDE;
        low = high + M * P_STRIDE;
        most = (float*)(low + M * P_STRIDE);
        rest = (u32*)(most + PARTS * M);
    }
};

/// What a warp knows of 16 rows after some units: maximum (in powers of two), sum and unnormalised output of
/// rows `lane / 4` and that plus 8. `some[i]`: the row has seen a token.
struct State {
    float most[2], sum[2], out[ON][4];
    bool some[2];
    DEV void clear() { some[0] = some[1] = false; }
};

/// Factors that bring two partial results to their common maximum.
struct Factors {
    float most, a, b;
    DEV Factors(float m, float n) {
        most = n > m ? n : m;
        a = exp2_fast(__fadd_rn(m, -most));
        b = exp2_fast(__fadd_rn(n, -most));
    }
    DEV float join(float x, float y) const { return __fmaf_rn(x, a, __fmul_rn(y, b)); }
};

/// Merges `later` into `s`, row by row; rows that saw nothing stay out.
DEV void merge(State& s, const State& later) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        if (!later.some[i]) continue;
        if (!s.some[i]) {
            s.some[i] = true, s.most[i] = later.most[i], s.sum[i] = later.sum[i];
#pragma unroll
            for (u32 n = 0; n < ON; n++)
                s.out[n][2 * i] = later.out[n][2 * i], s.out[n][2 * i + 1] = later.out[n][2 * i + 1];
            continue;
        }
        Factors f(s.most[i], later.most[i]);
        s.most[i] = f.most, s.sum[i] = f.join(s.sum[i], later.sum[i]);
#pragma unroll
        for (u32 n = 0; n < ON; n++) {
            s.out[n][2 * i] = f.join(s.out[n][2 * i], later.out[n][2 * i]);
            s.out[n][2 * i + 1] = f.join(s.out[n][2 * i + 1], later.out[n][2 * i + 1]);
        }
    }
}

/// The tiles of units `unit ..= last` of one sequence and key head, on their way through the ring.
struct Stream {
    const u16 *k, *v;
    const u32* table;
    u32 head, length, unit, last, step, to, from;
    bool live;

    DEV void start(const u16* keys, const u16* values, const u32* pages, u32 key_head, u32 tokens, u32 first,
                   u32 end) {
        k = keys, v = values, table = pages, head = key_head, length = tokens;
        unit = first, last = end - 1, step = 0, to = 0, from = 0, live = first < end;
    }
    /// Tiles of a unit that hold a token below the length.
    DEV u32 tiles(u32 u) const { return min(HALVES, (length - u * UNIT + STAGE - 1) / STAGE); }
    /// Tokens below the end of the next tile.
    DEV u32 next_end() const {
        u32 n = tiles(unit), tile = step < n ? step : step - n;
        return unit * UNIT + (tile + 1) * STAGE;
    }
    /// Starts the copy of the next tile, or of nothing; one group either way. Tokens beyond the length become
    /// zeros, so that what lies there cannot meet a zero weight as NaN.
    DEV void issue(const Room& room) {
        if (live) {
            u32 n = tiles(unit), tile = step < n ? step : step - n;
            const u16* cache = step < n ? k : v;
            u32 left = length - (unit * UNIT + tile * STAGE);
            const u16* source = cache + ((u64(table[unit]) * KV_HEADS + head) * UNIT + tile * STAGE) * D;
            u8* buffer = room.ring + to * TILE_BYTES;
#pragma unroll FAR
            for (u32 c = threadIdx.x; c < STAGE * CHUNKS; c += THREADS) {
                u32 token = c / CHUNKS, chunk = c % CHUNKS;
                bool there = token < left;
                cp_async16_or_zero(buffer + token * (2 * D) + 16 * (chunk ^ (token & SWIZZLE)),
                                   source + (there ? token : 0) * D + 8 * chunk, there);
            }
            to = to + 1 == STAGES ? 0 : to + 1;
            if (++step == 2 * n) step = 0, live = unit < last, unit++;
        }
        cp_async_commit();
    }
    /// The oldest tile, complete for all threads; the buffer of the one before it is refilled.
    DEV const u8* take(const Room& room) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        const u8* tile = room.ring + from * TILE_BYTES;
        from = from + 1 == STAGES ? 0 : from + 1;
        issue(room);
        return tile;
    }
};

/// Which rows and columns this warp has.
struct Place {
    u32 lane, part, row;  // row: first of the warp's 16
    DEV Place()
        : lane(threadIdx.x % 32), part(threadIdx.x / 32 % PARTS), row(threadIdx.x / 32 / PARTS * 16) {}
};

/// Scores of 16 rows against the warp's tokens of a tile.
DEV void score_tile(const Room& room, const Place& at, const u8* tile, float (&s)[SN][4]) {
#pragma unroll
    for (u32 n = 0; n < SN; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    const u16* q = room.q + (at.row + at.lane % 16) * Q_STRIDE + at.lane / 16 * 8;
#pragma unroll FAR
    for (u32 kk = 0; kk < D / 32; kk++) {
        u32 a0[4], a1[4];
        ldmatrix_x4(a0, q + 32 * kk);
        ldmatrix_x4(a1, q + 32 * kk + 16);
#pragma unroll
        for (u32 n = 0; n < SN; n++) {
            u32 token = at.part * TOKENS + n * 8 + at.lane % 8, chunk = 4 * kk + at.lane / 8, b[4];
            ldmatrix_x4(b, tile + token * (2 * D) + 16 * (chunk ^ (token & SWIZZLE)));
            mma_bf16(s[n], a0, {b[0], b[1]});
            mma_bf16(s[n], a1, {b[2], b[3]});
        }
    }
}

/// Adds p V of a tile's tokens: `tile_index` says which of the unit's.
DEV void value_tile(const Room& room, const Place& at, const u8* tile, u32 tile_index, State& s,
                    float (&ones)[4]) {
    u32 p_at = (at.row + at.lane % 16) * P_STRIDE + at.lane / 16 * 8 + tile_index * STAGE;
    const u32 one[2] = {0x3f803f80u, 0x3f803f80u};
#pragma unroll NEAR
    for (u32 kk = 0; kk < STAGE / 16; kk++) {
        u32 high[4], low[4];
        ldmatrix_x4(high, room.high + p_at + 16 * kk);
        ldmatrix_x4(low, room.low + p_at + 16 * kk);
        mma_bf16(ones, high, one);
        mma_bf16(ones, low, one);
        u32 token = 16 * kk + at.lane % 16;
        const u8* row = tile + token * (2 * D);
#pragma unroll
        for (u32 n = 0; n < ON; n += 2) {
            u32 chunk = at.part * (COLUMNS / 8) + n + at.lane / 16, b[4];
            ldmatrix_x4_trans(b, row + 16 * (chunk ^ (token & SWIZZLE)));
            mma_bf16(s.out[n], high, {b[0], b[1]});
            mma_bf16(s.out[n + 1], high, {b[2], b[3]});
            mma_bf16(s.out[n], low, {b[0], b[1]});
            mma_bf16(s.out[n + 1], low, {b[2], b[3]});
        }
    }
}

/// One unit for all rows of the block: `limit[i]` tokens are seen by the lane's two rows.
DEV void attend_unit(const Room& room, const Place& at, Stream& stream, u32 unit, const u32 (&limit)[2],
                     float scale, State& out) {
    u32 tiles = stream.tiles(unit), first = unit * UNIT + at.part * TOKENS + 2 * (at.lane % 4);
    float s[HALVES][SN][4], most[2] = {-INFINITY_F, -INFINITY_F};
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        if (h >= tiles) break;
        const u8* tile = stream.take(room);
        if (at.part >= SCORERS) continue;
        score_tile(room, at, tile, s[h]);
#pragma unroll
        for (u32 n = 0; n < SN; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 token = first + h * STAGE + n * 8 + i % 2;
                s[h][n][i] *= scale;
                if (token < limit[i / 2] && s[h][n][i] > most[i / 2]) most[i / 2] = s[h][n][i];
            }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
        if (PARTS > 1 && at.lane % 4 == 0) room.most[at.part * M + at.row + at.lane / 4 + 8 * i] = most[i];
    }
    if (PARTS > 1) {
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 p = 0; p < PARTS; p++)
                most[i] = fmaxf(most[i], room.most[p * M + at.row + at.lane / 4 + 8 * i]);
    }
#pragma unroll
    for (u32 h = 0; h < HALVES; h++) {
        if (h >= tiles || at.part >= SCORERS) break;
#pragma unroll
        for (u32 n = 0; n < SN; n++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 token = first + h * STAGE + n * 8;
                float x = token < limit[i] ? exp2_fast(__fadd_rn(s[h][n][2 * i], -most[i])) : 0.0f;
                float y = token + 1 < limit[i] ? exp2_fast(__fadd_rn(s[h][n][2 * i + 1], -most[i])) : 0.0f;
                u32 high = pack_bf16(x, y),
                    place = (at.row + at.lane / 4 + 8 * i) * P_STRIDE + token - unit * UNIT;
                *(u32*)(room.high + place) = high;
                *(u32*)(room.low + place) = pack_bf16(x - bf16_lo(high), y - bf16_hi(high));
            }
    }
    float ones[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 n = 0; n < ON; n++) out.out[n][0] = out.out[n][1] = out.out[n][2] = out.out[n][3] = 0;
    for (u32 h = 0; h < tiles; h++) value_tile(room, at, stream.take(room), h, out, ones);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        out.most[i] = most[i], out.sum[i] = ones[2 * i];
        out.some[i] = unit * UNIT < limit[i];
    }
}

/// Loads the queries of `rows` rows (from `row`) of one key head as the block's M query rows, zeros beyond
/// them.
DEV void load_queries(const Room& room, const float* q, u32 row, u32 rows, u32 head) {
    for (u32 i = threadIdx.x; i < M * (D / 4); i += THREADS) {
        u32 m = i / (D / 4), c = i % (D / 4) * 4;
        float4 x = make_float4(0, 0, 0, 0);
        if (m < rows * GROUP) {
            u64 from = (u64(row + m / GROUP) * (KV_HEADS * GROUP) + head * GROUP + m % GROUP) * D + c;
            x = ld_f4(q + from);
        }
        st_bf16x4(room.q + m * Q_STRIDE + c, x);
    }
}

/// Two neighbouring outputs of a query head, normalised, gated and stored.
DEV void put2(void* out, const float* gate, u32 row, u32 query_head, u32 column, float x, float y) {
    u64 head = u64(row) * (KV_HEADS * GROUP) + query_head;
    if (GATED) {
        float2 g = *(const float2*)(gate + head * (2 * D) + D + column);
        x *= sigmoid(g.x), y *= sigmoid(g.y);
    }
    if (OUT_BF16) {
        *(u32*)((u16*)out + head * D + column) = pack_bf16(x, y);
    } else {
        *(float2*)((float*)out + head * D + column) = make_float2(x, y);
    }
}

/// Stores the finished rows that this warp holds.
DEV void finish(const Place& at, const State& s, void* out, const float* gate, u32 row, u32 rows, u32 head) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 m = at.row + at.lane / 4 + 8 * i;
        if (m >= rows * GROUP) continue;
#pragma unroll
        for (u32 n = 0; n < ON; n++)
            put2(out, gate, row + m / GROUP, head * GROUP + m % GROUP,
                 at.part * COLUMNS + n * 8 + 2 * (at.lane % 4), s.out[n][2 * i] / s.sum[i],
                 s.out[n][2 * i + 1] / s.sum[i]);
    }
}
