// Embedding: eight neighbouring values of a token's row a thread, decoded with the host's roundings (so: its
// bits). Block formats lie in the planar layout (formats/planar.rs): a byte is found where a product's lane
// would have it.
//
// Defines: FORMAT, HIDDEN (a multiple of 8).
#include "common.cuh"
#include "rowops.cuh"

enum { F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_K = 4, Q5_K = 5, Q6_K = 6, Q2_K = 7 };
enum Order { PLAIN, WIDE, WIDE_PAIRS, SPLIT, SPLIT_PAIRS };

/// Row `row` of a tile of `rows` rows, `blocks` blocks a row; `base` moves from plane to plane.
struct Tile {
    const u8* base;
    u32 rows, row, blocks, block;

    /// Byte `j` of this block's field of BYTES bytes in the plane at `base`.
    template <int BYTES, Order ORDER>
    DEV u32 byte(u32 j) const {
        constexpr u32 PIECE = ORDER == PLAIN ? BYTES : ORDER == WIDE || ORDER == SPLIT ? 32 : 64;
        u32 i = j;
        if (ORDER != PLAIN) {
            bool wide = ORDER == WIDE || ORDER == WIDE_PAIRS, pairs = PIECE == 64;
            u32 run = j / 32, lane = wide ? j % 32 / 8 : j % 16 / 4, word = wide ? j % 8 / 4 : j % 32 / 16;
            // The two middle bytes of a word are swapped.
            u32 inside = (j & 1) << 1 | (j >> 1 & 1);
            i = pairs ? run / 2 * 64 + lane * 16 + run % 2 * 8 + word * 4 + inside
                      : run * 32 + lane * 8 + word * 4 + inside;
        }
        return base[(u64(block) * (BYTES / PIECE) + i / PIECE) * rows * PIECE + row * PIECE + i % PIECE];
    }
    template <int BYTES>
    DEV void next_plane() {
        base += u64(rows) * blocks * BYTES;
    }
    template <int BYTES>
    DEV float half(u32 at) const {
        return f16_to_f32(u16(byte<BYTES, PLAIN>(at) | byte<BYTES, PLAIN>(at + 1) << 8));
    }
};

template <int VALUES, int BYTES>
DEV Tile tile_of(const u8* table, u32 vocab, u32 token, u32 first) {
    u32 tile = token & ~15u, blocks = HIDDEN / VALUES;
    return {table + u64(tile) * blocks * BYTES, min(16u, vocab - tile), token - tile, blocks, first / VALUES};
}

/// Scale and minimum of sub-block `j`, six bits each, from the 12 bytes behind d and dmin.
DEV void scale_min(const Tile& t, u32 j, float& scale, float& low) {
    auto s = [&](u32 i) { return t.byte<16, PLAIN>(4 + i); };
    u32 a = j < 4 ? s(j) & 63 : (s(j + 4) & 15) | s(j - 4) >> 6 << 4;
    u32 b = j < 4 ? s(j + 4) & 63 : s(j + 4) >> 4 | s(j) >> 6 << 4;
    scale = __fmul_rn(t.half<16>(0), float(a));
    low = __fmul_rn(t.half<16>(2), float(b));
}

/// Values `first .. first + 8` of row `token`.
DEV void decode(const u8* table, u32 vocab, u32 token, u32 first, float (&x)[8]) {
    [[maybe_unused]] u64 at = u64(token) * HIDDEN + first;
    [[maybe_unused]] u32 v = first % 256;
#if FORMAT == 0
    for (u32 i = 0; i < 8; i++) x[i] = ((const float*)table)[at + i];
#elif FORMAT == 1 || FORMAT == 2
    uint4 w = ld16(table + 2 * at);
    u32 words[4] = {w.x, w.y, w.z, w.w};
    for (u32 i = 0; i < 8; i++) {
        u16 b = u16(words[i / 2] >> (16 * (i % 2)));
        x[i] = FORMAT == 1 ? f16_to_f32(b) : bf16_to_f32(b);
    }
#elif FORMAT == 3
    Tile t = tile_of<32, 34>(table, vocab, token, first);
    int q[8];
    for (u32 i = 0; i < 8; i++) q[i] = int((signed char)t.byte<32, WIDE>(first % 32 + i));
    t.next_plane<32>();
    float d = t.half<2>(0);
    for (u32 i = 0; i < 8; i++) x[i] = __fmul_rn(d, float(q[i]));
#elif FORMAT == 4 || FORMAT == 5
    Tile t = tile_of<256, FORMAT == 4 ? 144 : 176>(table, vocab, token, first);
    u32 j = v / 32, l = v % 32, q[8];
    for (u32 i = 0; i < 8; i++) q[i] = t.byte<128, WIDE_PAIRS>(32 * (j / 2) + l + i) >> (4 * (j % 2)) & 15;
    t.next_plane<128>();
    if (FORMAT == 5) {
        for (u32 i = 0; i < 8; i++) q[i] |= (t.byte<32, WIDE>(l + i) >> j & 1) << 4;
        t.next_plane<32>();
    }
    float scale, low;
    scale_min(t, j, scale, low);
    for (u32 i = 0; i < 8; i++) x[i] = __fadd_rn(__fmul_rn(scale, float(q[i])), -low);
#elif FORMAT == 6
    Tile t = tile_of<256, 210>(table, vocab, token, first);
    u32 h = v / 128, r = v % 128 / 32, l = v % 32, q[8];
    for (u32 i = 0; i < 8; i++)
        q[i] = t.byte<128, SPLIT_PAIRS>(64 * h + 32 * (r % 2) + l + i) >> (4 * (r / 2)) & 15;
    t.next_plane<128>();
    for (u32 i = 0; i < 8; i++) q[i] |= (t.byte<64, SPLIT>(32 * h + l + i) >> (2 * r) & 3) << 4;
    t.next_plane<64>();
    int s = int((signed char)t.byte<16, PLAIN>(v / 16));
    t.next_plane<16>();
    float scale = __fmul_rn(t.half<2>(0), float(s));
    for (u32 i = 0; i < 8; i++) x[i] = __fmul_rn(scale, float(int(q[i]) - 32));
#else
    Tile t = tile_of<256, 84>(table, vocab, token, first);
    u32 h = v / 128, r = v % 128 / 32, l = v % 32, q[8];
    for (u32 i = 0; i < 8; i++) q[i] = t.byte<64, SPLIT_PAIRS>(32 * h + l + i) >> (2 * r) & 3;
    t.next_plane<64>();
    u32 packed = t.byte<16, PLAIN>(v / 16);
    t.next_plane<16>();
    float scale = __fmul_rn(t.half<4>(0), float(packed & 15)),
          low = __fmul_rn(t.half<4>(2), float(packed >> 4));
    for (u32 i = 0; i < 8; i++) x[i] = __fadd_rn(__fmul_rn(scale, float(q[i])), -low);
#endif
}

/// Tokens are checked against the vocabulary before a step; one beyond it reads the last row, never past the
/// table.
extern "C" __global__ void __launch_bounds__(128)
    embed_rows(const u32* tokens, const u8* table, float* out,
               const Shape* shape, u32 vocab) {
    pdl_launch();
    u32 row = blockIdx.y, first = 8 * (blockIdx.x * 128 + threadIdx.x), rows = shape->rows;
    pdl_wait();
    if (row >= rows || first >= HIDDEN) return;
    float x[8];
    decode(table, vocab, min(tokens[row], vocab - 1), first, x);
    float* to = out + u64(row) * HIDDEN + first;
    st_f4(to, make_float4(x[0], x[1], x[2], x[3]));
    st_f4(to + 4, make_float4(x[4], x[5], x[6], x[7]));
}
