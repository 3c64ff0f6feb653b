// Weights of every format as A operands of mma.m16n8k16, straight from global memory to registers.
//
// A tile is 16 rows of a matrix; lane 4g+t of a warp holds rows g and g+8. The sum over k may be taken in any
// order as long as A and B agree, so the k order inside 32 values is chosen for 16-byte loads: lane t owns
// values 8t..8t+7, its first four in the first mma and the others in the second ("wide"), or, where scales
// cover 16 values, 4t..4t+3 in the first and 16+4t.. in the second ("split"). Codes of block formats become
// exact small integers in bf16, and the scale is applied to the f32 sum of its group: nothing is rounded that
// the format does not round.
#pragma once
#include "common.cuh"

enum { F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_K = 4, Q5_K = 5, Q6_K = 6, Q2_K = 7 };

/// Which rows a lane holds, and the byte distances that follow from the number of rows in the tile.
struct Lane {
    u32 g, t;
    DEV Lane() : g((threadIdx.x & 31) >> 2), t(threadIdx.x & 3) {}
};

/// Rows of the tile that starts at `row0`: 16, or fewer at the end of a matrix. `FULL` says that all are
/// whole.
template <bool FULL> struct TileRows {
    u32 rows, r0, r1;
    DEV TileRows(const Lane& l, u32 n, u32 row0) {
        rows = FULL ? 16u : min(16u, n - row0);
        // Rows beyond the matrix repeat its last one; their results are never stored.
        r0 = FULL ? l.g : min(l.g, rows - 1);
        r1 = FULL ? l.g + 8 : min(l.g + 8, rows - 1);
    }
};

/// float(byte `i` of `word`) + 2^23 by one byte permutation; `i` is a constant after unrolling.
DEV float byte_and_23(u32 word, int i) { return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)); }
/// d * (byte i of word), rounded once: (2^23 + b) d - 2^23 d is exact before the rounding of the fma.
DEV float times_byte(u32 word, int i, float d, float minus_d23) {
    return fmaf(byte_and_23(word, i), d, minus_d23);
}
constexpr float TWO23 = 8388608.0f;

/// Bytes of a row of K values.
constexpr u32 row_bytes(int f, int k) {
    return f == F32 ? 4 * k : f == F16 || f == BF16 ? 2 * k : f == Q8_0 ? k / 32 * 34 : k / 256 * (
        f == Q4_K ? 144 : f == Q5_K ? 176 : f == Q6_K ? 210 : 84);
}
/// Asks the last cache for piece `i` of `pieces` of a whole tile: more bytes on their way than registers can
/// hold.
template <int F, int K> DEV void fetch_piece(const u8* matrix, u32 row0, u32 i, u32 pieces) {
    u32 bytes = 16 * row_bytes(F, K), piece = (bytes / pieces + 15) / 16 * 16, from = i * piece;
    if ((threadIdx.x & 31) == 0 && from < bytes)
        prefetch_l2(matrix + u64(row0) * row_bytes(F, K) + from, min(piece, bytes - from));
}

DEV u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
/// Shift left, or right where `by` is negative; `by` is a constant after unrolling.
DEV u32 shift(u32 w, int by) { return by >= 0 ? w << by : w >> -by; }

/// Of each format: `UNIT` values of k that one load step brings, `TURN` of them that one turn of the loop
/// over a unit decodes, `GROUP` values under one scale (0: none), `SPLIT` order, `PARTS` bf16 terms a weight
/// takes, `BIAS` the bf16 pair that undoes the codes' offset (0: none). `Regs` is what a lane holds of a
/// unit, `Src` where it comes from, `Open` the unit being decoded; `turn` brings the next values to where the
/// first ones were.
template <int F, int K, bool FULL> struct Weights;

// ---- plain formats: row major -----------------------------------------------------------------------------

template <int K, bool FULL, int SIZE> struct RowMajor {
    const u8* p0;
    u32 to1, t;
    DEV RowMajor(const u8* matrix, u32 n, u32 row0, const Lane& l) {
        TileRows<FULL> r(l, n, row0);
        p0 = matrix + u64(row0 + r.r0) * (K * SIZE) + 8 * SIZE * l.t;
        to1 = FULL ? 8u * K * SIZE : (r.r1 - r.r0) * u32(K * SIZE);
        t = l.t;
    }
    /// 16 bytes at `at` of both rows; zeros beyond K, which only a K that is no multiple of 32 has.
    DEV void load(u32 unit, u32 at, uint4& a, uint4& b) const {
        if (K % 32 == 0 || 32 * unit + 8 * t < K) {
            a = ld16_stream(p0 + u64(unit) * (32 * SIZE) + at);
            b = ld16_stream(p0 + to1 + u64(unit) * (32 * SIZE) + at);
        } else {
            a = b = make_uint4(0, 0, 0, 0);
        }
    }
};

template <int K, bool FULL> struct Weights<BF16, K, FULL> {
    static constexpr int UNIT = 32, TURN = 32, GROUP = 0, PARTS = 1;
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0;
    using Src = RowMajor<K, FULL, 2>;
    struct Regs {
        uint4 a, b;
    };
    using Open = Regs;
    static DEV void turn(Open&) {}
    static DEV void load(Regs& r, const Src& s, u32 unit) { s.load(unit, 0, r.a, r.b); }
    static DEV void frag(const Regs& r, int, int step, int, u32 (&a)[4]) {
        a[0] = step ? r.a.z : r.a.x, a[1] = step ? r.b.z : r.b.x;
        a[2] = step ? r.a.w : r.a.y, a[3] = step ? r.b.w : r.b.y;
    }
    static DEV void scales(const Regs&, int, float (&)[2], float (&)[2]) {}
};

/// The `part`-th bf16 term of a pair of f32: the value is the sum of its terms, exactly.
DEV u32 bf16_term(float lo, float hi, int part) {
    u32 p = pack_bf16(lo, hi);
#pragma unroll
    for (int i = 0; i < part; i++) {
        lo -= bf16_lo(p), hi -= bf16_hi(p);
        p = pack_bf16(lo, hi);
    }
    return p;
}

template <int K, bool FULL> struct Weights<F16, K, FULL> {
    static constexpr int UNIT = 32, TURN = 32, GROUP = 0, PARTS = 2;  // 11 significant bits
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0;
    using Src = RowMajor<K, FULL, 2>;
    struct Regs {
        uint4 a, b;
    };
    using Open = Regs;
    static DEV void turn(Open&) {}
    static DEV void load(Regs& r, const Src& s, u32 unit) { s.load(unit, 0, r.a, r.b); }
    static DEV u32 term(u32 pair, int part) {
        return bf16_term(f16_to_f32(u16(pair)), f16_to_f32(u16(pair >> 16)), part);
    }
    static DEV void frag(const Regs& r, int, int step, int part, u32 (&a)[4]) {
        a[0] = term(step ? r.a.z : r.a.x, part), a[1] = term(step ? r.b.z : r.b.x, part);
        a[2] = term(step ? r.a.w : r.a.y, part), a[3] = term(step ? r.b.w : r.b.y, part);
    }
    static DEV void scales(const Regs&, int, float (&)[2], float (&)[2]) {}
};

template <int K, bool FULL> struct Weights<F32, K, FULL> {
    static constexpr int UNIT = 32, TURN = 32, GROUP = 0, PARTS = 3;  // 24 significant bits
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0;
    using Src = RowMajor<K, FULL, 4>;
    struct Regs {
        uint4 a[2], b[2];
    };
    using Open = Regs;
    static DEV void turn(Open&) {}
    static DEV void load(Regs& r, const Src& s, u32 unit) {
        s.load(unit, 0, r.a[0], r.b[0]);
        s.load(unit, 16, r.a[1], r.b[1]);
    }
    static DEV u32 term(u32 lo, u32 hi, int part) {
        return bf16_term(__uint_as_float(lo), __uint_as_float(hi), part);
    }
    static DEV void frag(const Regs& r, int, int step, int part, u32 (&a)[4]) {
        const uint4 &u = r.a[step], &v = r.b[step];
        a[0] = term(u.x, u.y, part), a[1] = term(v.x, v.y, part);
        a[2] = term(u.z, u.w, part), a[3] = term(v.z, v.w, part);
    }
    static DEV void scales(const Regs&, int, float (&)[2], float (&)[2]) {}
};

// ---- block formats: the planar layout (formats/planar.rs) -------------------------------------------------

/// One plane of a tile for a lane: `[block][rows][WIDTH bytes]`, the lane's share at its rows.
template <bool FULL, int WIDTH> struct Plane {
    const u8* p;
    u32 to1, step;
    DEV Plane(const u8* plane, const TileRows<FULL>& r, u32 share) {
        p = plane + r.r0 * WIDTH + share;
        to1 = FULL ? 8u * WIDTH : (r.r1 - r.r0) * WIDTH;
        step = FULL ? 16u * WIDTH : r.rows * WIDTH;
    }
    DEV const u8* row0(u32 block) const { return p + u64(block) * (FULL ? 16u * WIDTH : step); }
    DEV const u8* row1(u32 block) const { return row0(block) + (FULL ? 8u * WIDTH : to1); }
};

template <int K, bool FULL> struct Weights<Q8_0, K, FULL> {
    static constexpr int UNIT = 32, TURN = 32, GROUP = 32, PARTS = 1;
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0;
    struct Src {
        Plane<FULL, 32> codes;
        Plane<FULL, 2> d;
        DEV Src(const u8* m, u32 n, u32 row0, const Lane& l)
            : Src(m + u64(row0) * (K / 32 * 34), TileRows<FULL>(l, n, row0), l) {}
        DEV Src(const u8* tile, const TileRows<FULL>& r, const Lane& l)
            : codes(tile, r, 8 * l.t), d(tile + r.rows * (K / 32) * 32, r, 0) {}
    };
    struct Regs {
        uint2 a, b;
        u16 da, db;
    };
    using Open = Regs;
    static DEV void turn(Open&) {}
    static DEV void load(Regs& r, const Src& s, u32 u) {
        r.a = ld8_stream(s.codes.row0(u)), r.b = ld8_stream(s.codes.row1(u));
        r.da = ld2_stream(s.d.row0(u)), r.db = ld2_stream(s.d.row1(u));
    }
    /// Bytes 0 and 2 of `w` as signed integers: 128 + low seven bits, then -128 or, where the sign is set,
    /// -256.
    static DEV u32 pair(u32 w) {
        return add_bf16x2(and_or(w, 0x007f007fu, 0x43004300u), and_or(w, 0x00800080u, 0xc300c300u));
    }
    static DEV void frag(const Regs& r, int, int step, int, u32 (&a)[4]) {
        u32 u = step ? r.a.y : r.a.x, v = step ? r.b.y : r.b.x;
        a[0] = pair(u), a[1] = pair(v), a[2] = pair(u >> 8), a[3] = pair(v >> 8);
    }
    static DEV void scales(const Regs& r, int, float (&d)[2], float (&)[2]) {
        d[0] = f16_to_f32(r.da), d[1] = f16_to_f32(r.db);
    }
};

/// Scales and minima of two rows of half a block of Q4_K or Q5_K, from the 16 bytes d, dmin and twelve packed
/// six-bit numbers of each row's block. `OFFSET` is what the codes are raised by.
template <int OFFSET> struct KScales {
    u32 sc[2], mn[2];
    float d[2], m[2];
    DEV KScales(const uint4& a, const uint4& b, u32 half) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4& h = i ? b : a;
            d[i] = f16_to_f32(u16(h.x)), m[i] = f16_to_f32(u16(h.x >> 16)) * (1.0f / OFFSET);
            sc[i] = half ? (h.w & 0x0f0f0f0fu) | ((h.y >> 2) & 0x30303030u) : h.y & 0x3f3f3f3fu;
            mn[i] = half ? ((h.w >> 4) & 0x0f0f0f0fu) | ((h.z >> 2) & 0x30303030u) : h.z & 0x3f3f3f3fu;
        }
    }
    /// dd = d * scale_j; mm = dmin / OFFSET * min_j, which is the rounded dmin * min_j over a power of two.
    DEV void get(int j, float (&dd)[2], float (&mm)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            dd[i] = times_byte(sc[i], j, d[i], -TWO23 * d[i]);
            mm[i] = times_byte(mn[i], j, m[i], -TWO23 * m[i]);
        }
    }
    DEV void turn() { sc[0] >>= 16, sc[1] >>= 16, mn[0] >>= 16, mn[1] >>= 16; }
};

template <int K, bool FULL> struct Weights<Q4_K, K, FULL> {
    // Codes as 16 + q: the sum over 16 is taken off by an mma of x with -16, which the minima need anyway.
    static constexpr int UNIT = 128, TURN = 64, GROUP = 32, PARTS = 1, BLOCKS = K / 256;
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0xc180c180u;
    struct Src {
        Plane<FULL, 64> codes;
        Plane<FULL, 16> head;
        DEV Src(const u8* m, u32 n, u32 row0, const Lane& l)
            : Src(m + u64(row0) * (BLOCKS * 144), TileRows<FULL>(l, n, row0), l) {}
        DEV Src(const u8* tile, const TileRows<FULL>& r, const Lane& l)
            : codes(tile, r, 16 * l.t), head(tile + r.rows * BLOCKS * 128, r, 0) {}
    };
    struct Regs {
        uint4 a, b, ha, hb;
        u32 half;
    };
    struct Open {
        uint4 a, b;
        KScales<16> s;
        DEV Open(const Regs& r) : a(r.a), b(r.b), s(r.ha, r.hb, r.half) {}
    };
    static DEV void turn(Open& r) { r.a.x = r.a.z, r.a.y = r.a.w, r.b.x = r.b.z, r.b.y = r.b.w, r.s.turn(); }
    static DEV void load(Regs& r, const Src& s, u32 u) {
        r.a = ld16_stream(s.codes.row0(u)), r.b = ld16_stream(s.codes.row1(u));
        r.ha = ld16_keep(s.head.row0(u / 2)), r.hb = ld16_keep(s.head.row1(u / 2));
        r.half = u & 1;
    }
    static DEV u32 pair(u32 w, int by) { return and_or(shift(w, by), 0x00780078u, 0x41804180u); }
    static DEV void frag(const Open& r, int q, int step, int, u32 (&a)[4]) {
        int nibble = 4 * q;
        u32 u = step ? r.a.y : r.a.x, v = step ? r.b.y : r.b.x;
        a[0] = pair(u, 3 - nibble), a[1] = pair(v, 3 - nibble);
        a[2] = pair(u, -5 - nibble), a[3] = pair(v, -5 - nibble);
    }
    static DEV void scales(const Open& r, int q, float (&d)[2], float (&m)[2]) { r.s.get(q, d, m); }
};

template <int K, bool FULL> struct Weights<Q5_K, K, FULL> {
    static constexpr int UNIT = 128, TURN = 64, GROUP = 32, PARTS = 1, BLOCKS = K / 256;
    static constexpr bool SPLIT = false;
    static constexpr u32 BIAS = 0xc200c200u;  // codes as 32 + q
    struct Src {
        Plane<FULL, 64> codes;
        Plane<FULL, 32> fifth;
        Plane<FULL, 16> head;
        DEV Src(const u8* m, u32 n, u32 row0, const Lane& l)
            : Src(m + u64(row0) * (BLOCKS * 176), TileRows<FULL>(l, n, row0), l) {}
        DEV Src(const u8* tile, const TileRows<FULL>& r, const Lane& l)
            : codes(tile, r, 16 * l.t), fifth(tile + r.rows * BLOCKS * 128, r, 8 * l.t),
              head(tile + r.rows * BLOCKS * 160, r, 0) {}
    };
    struct Regs {
        uint4 a, b, ha, hb;
        uint2 fa, fb;
        u32 half;
    };
    struct Open {
        uint4 a, b;
        uint2 fa, fb;  // bit q of a byte: the fifth bit of the turn's sub-block q
        KScales<32> s;
        DEV Open(const Regs& r) : a(r.a), b(r.b), fa(r.fa), fb(r.fb), s(r.ha, r.hb, r.half) {
            down(4 * r.half);
        }
        DEV void down(u32 by) { fa.x >>= by, fa.y >>= by, fb.x >>= by, fb.y >>= by; }
    };
    static DEV void turn(Open& r) {
        r.a.x = r.a.z, r.a.y = r.a.w, r.b.x = r.b.z, r.b.y = r.b.w, r.s.turn(), r.down(2);
    }
    static DEV void load(Regs& r, const Src& s, u32 u) {
        r.a = ld16_stream(s.codes.row0(u)), r.b = ld16_stream(s.codes.row1(u));
        r.fa = ld8_keep(s.fifth.row0(u / 2)), r.fb = ld8_keep(s.fifth.row1(u / 2));
        r.ha = ld16_keep(s.head.row0(u / 2)), r.hb = ld16_keep(s.head.row1(u / 2));
        r.half = u & 1;
    }
    /// `f` holds the bit wanted at bit 0 or, of the second pair, 8.
    static DEV u32 pair(u32 w, int by, u32 f, int fby) {
        return and_or(shift(f, fby), 0x00400040u, and_or(shift(w, by), 0x003c003cu, 0x42004200u));
    }
    static DEV void frag(const Open& r, int q, int step, int, u32 (&a)[4]) {
        int nibble = 4 * q;
        u32 u = step ? r.a.y : r.a.x, v = step ? r.b.y : r.b.x;
        u32 fu = step ? r.fa.y : r.fa.x, fv = step ? r.fb.y : r.fb.x;
        a[0] = pair(u, 2 - nibble, fu, 6 - q), a[1] = pair(v, 2 - nibble, fv, 6 - q);
        a[2] = pair(u, -6 - nibble, fu, -2 - q), a[3] = pair(v, -6 - nibble, fv, -2 - q);
    }
    static DEV void scales(const Open& r, int q, float (&d)[2], float (&m)[2]) { r.s.get(q, d, m); }
};

template <int K, bool FULL> struct Weights<Q6_K, K, FULL> {
    static constexpr int UNIT = 128, TURN = 64, GROUP = 16, PARTS = 1, BLOCKS = K / 256;
    static constexpr bool SPLIT = true;
    static constexpr u32 BIAS = 0;
    struct Src {
        Plane<FULL, 64> low;
        Plane<FULL, 32> high;
        Plane<FULL, 16> sc;
        Plane<FULL, 2> d;
        DEV Src(const u8* m, u32 n, u32 row0, const Lane& l)
            : Src(m + u64(row0) * (BLOCKS * 210), TileRows<FULL>(l, n, row0), l) {}
        DEV Src(const u8* tile, const TileRows<FULL>& r, const Lane& l)
            : low(tile, r, 16 * l.t), high(tile + r.rows * BLOCKS * 128, r, 8 * l.t),
              sc(tile + r.rows * BLOCKS * 192, r, 0), d(tile + r.rows * BLOCKS * 208, r, 0) {}
    };
    struct Regs {
        uint4 a, b;
        uint2 ha, hb, sa, sb;
        u16 da, db;
    };
    struct Open {
        uint4 a, b;
        uint2 ha, hb, sa, sb;
        float da, db;
        // A signed byte plus 128 is its byte with the top bit turned.
        DEV Open(const Regs& r)
            : a(r.a), b(r.b), ha(r.ha), hb(r.hb), sa(make_uint2(r.sa.x ^ TOP, r.sa.y ^ TOP)),
              sb(make_uint2(r.sb.x ^ TOP, r.sb.y ^ TOP)), da(f16_to_f32(r.da)), db(f16_to_f32(r.db)) {}
    };
    static constexpr u32 TOP = 0x80808080u;
    static DEV void turn(Open& r) {
        r.a = make_uint4(r.a.x >> 4, r.a.y >> 4, r.a.z >> 4, r.a.w >> 4);
        r.b = make_uint4(r.b.x >> 4, r.b.y >> 4, r.b.z >> 4, r.b.w >> 4);
        r.ha.x >>= 4, r.ha.y >>= 4, r.hb.x >>= 4, r.hb.y >>= 4, r.sa.x = r.sa.y, r.sb.x = r.sb.y;
    }
    static DEV void load(Regs& r, const Src& s, u32 u) {
        r.a = ld16_stream(s.low.row0(u)), r.b = ld16_stream(s.low.row1(u));
        r.ha = ld8_stream(s.high.row0(u)), r.hb = ld8_stream(s.high.row1(u));
        r.sa = ld8_keep(s.sc.row0(u / 2) + 8 * (u & 1)), r.sb = ld8_keep(s.sc.row1(u / 2) + 8 * (u & 1));
        r.da = ld2_stream(s.d.row0(u / 2)), r.db = ld2_stream(s.d.row1(u / 2));
    }
    /// 128 + q of six bits, then 160 off: q - 32, exactly.
    static DEV u32 pair(u32 w, int by, u32 h, int hby) {
        u32 q = and_or(shift(h, hby), 0x00300030u, and_or(shift(w, by), 0x000f000fu, 0x43004300u));
        return sub_bf16x2(q, 0x43204320u);
    }
    static DEV void frag(const Open& r, int q, int step, int, u32 (&a)[4]) {
        int w = 2 * q + step;
        u32 u = word_of(r.a, w), v = word_of(r.b, w);
        u32 hu = step ? r.ha.y : r.ha.x, hv = step ? r.hb.y : r.hb.x;
        a[0] = pair(u, 0, hu, 4 - 2 * q), a[1] = pair(v, 0, hv, 4 - 2 * q);
        a[2] = pair(u, -8, hu, -4 - 2 * q), a[3] = pair(v, -8, hv, -4 - 2 * q);
    }
    static DEV void scales(const Open& r, int j, float (&d)[2], float (&)[2]) {
        d[0] = r.da * (byte_and_23(r.sa.x, j) - (TWO23 + 128.0f));
        d[1] = r.db * (byte_and_23(r.sb.x, j) - (TWO23 + 128.0f));
    }
};

template <int K, bool FULL> struct Weights<Q2_K, K, FULL> {
    static constexpr int UNIT = 256, TURN = 128, GROUP = 16, PARTS = 1, BLOCKS = K / 256;
    static constexpr bool SPLIT = true;
    static constexpr u32 BIAS = 0xc080c080u;  // codes as 4 + q
    struct Src {
        Plane<FULL, 64> codes;
        Plane<FULL, 16> sc;
        Plane<FULL, 4> d;
        DEV Src(const u8* m, u32 n, u32 row0, const Lane& l)
            : Src(m + u64(row0) * (BLOCKS * 84), TileRows<FULL>(l, n, row0), l) {}
        DEV Src(const u8* tile, const TileRows<FULL>& r, const Lane& l)
            : codes(tile, r, 16 * l.t), sc(tile + r.rows * BLOCKS * 64, r, 0),
              d(tile + r.rows * BLOCKS * 80, r, 0) {}
    };
    struct Regs {
        uint4 a, b, sa, sb;
        u32 da, db;
    };
    using Open = Regs;
    static DEV void turn(Open& r) {
        r.a.x = r.a.z, r.a.y = r.a.w, r.b.x = r.b.z, r.b.y = r.b.w;
        r.sa.x = r.sa.z, r.sa.y = r.sa.w, r.sb.x = r.sb.z, r.sb.y = r.sb.w;
    }
    static DEV void load(Regs& r, const Src& s, u32 u) {
        r.a = ld16_stream(s.codes.row0(u)), r.b = ld16_stream(s.codes.row1(u));
        r.sa = ld16_stream(s.sc.row0(u)), r.sb = ld16_stream(s.sc.row1(u));
        r.da = ld4_stream(s.d.row0(u)), r.db = ld4_stream(s.d.row1(u));
    }
    static DEV u32 pair(u32 w, int by) { return and_or(shift(w, by), 0x00600060u, 0x40804080u); }
    static DEV void frag(const Open& r, int q, int step, int, u32 (&a)[4]) {
        u32 u = step ? r.a.y : r.a.x, v = step ? r.b.y : r.b.x;
        a[0] = pair(u, 5 - 2 * q), a[1] = pair(v, 5 - 2 * q);
        a[2] = pair(u, -3 - 2 * q), a[3] = pair(v, -3 - 2 * q);
    }
    static DEV void scale(u32 w, u32 dm, int j, float& d, float& m) {
        float d0 = f16_to_f32(u16(dm)), m0 = f16_to_f32(u16(dm >> 16)) * 0.25f;
        d = times_byte(w & 0x0f0f0f0fu, j & 3, d0, -TWO23 * d0);
        m = times_byte((w >> 4) & 0x0f0f0f0fu, j & 3, m0, -TWO23 * m0);
    }
    static DEV void scales(const Open& r, int j, float (&d)[2], float (&m)[2]) {
        scale(j < 4 ? r.sa.x : r.sa.y, r.da, j, d[0], m[0]);
        scale(j < 4 ? r.sb.x : r.sb.y, r.db, j, d[1], m[1]);
    }
};
