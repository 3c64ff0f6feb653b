// Products of weight tiles with bf16 rows, and the one reduction tree that all of them share.
//
// The tree of an output is a property of (K, format): K is cut into `slices_of(K)` slices at unit boundaries,
// a slice adds its mma results in k order from zero, and zero and the slices are added in index order. Who
// computes a slice (a warp of its own, a block of its own, or one warp after another slice) never changes a
// bit, nor does the column an input row lands in: so a row has the same result alone, in a batch of 64 and in
// a prefill chunk.
#pragma once
#include "rowops.cuh"
#include "weights.cuh"

/// Slices of K: at least 512 values each (256 below 2048), at most eight.
constexpr int slices_of(int k) {
    int s = k < 2048 ? k / 256 : k / 512;
    return s < 1 ? 1 : s > 8 ? 8 : s;
}
constexpr int units_of(int k, int unit) { return (k + unit - 1) / unit; }
/// First unit of slice `s`.
constexpr u32 slice_begin(int units, int slices, u32 s) { return u32(units) * s / u32(slices); }

/// B operands from rows in global memory, `row` that of this lane's column. A column that nobody stores may
/// hold any row: columns do not mix. `ONE`: only the first column counts.
template <int K, bool SPLIT, bool ONE> struct GlobalRows {
    static constexpr bool ROLLED = false, EVEN = ONE;
    const u16* lane;  // this lane's first value
    u32 t, minus[4];
    DEV GlobalRows(const u16* row, const Lane& l, u32 bias) : lane(row + (SPLIT ? 4 : 8) * l.t), t(l.t) {
        // Four registers that stay: known constants would be moved into place for every mma. Rows are aligned
        // to 8 bytes, which the compiler does not know, so all four are `bias`.
        u32 low = u32(u64(row));
        minus[0] = bias + (low & 1), minus[1] = bias + (low & 2), minus[2] = bias + (low & 4);
        minus[3] = bias + (low & 3);
    }
    DEV uint4 get(int, u32 k0) const {
        if (K % 32 != 0 && !SPLIT && k0 + 8 * t >= K) return make_uint4(0, 0, 0, 0);
        if (!SPLIT) return *(const uint4*)(lane + k0);
        uint2 a = *(const uint2*)(lane + k0), b = *(const uint2*)(lane + k0 + 16);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
};

/// B operands from rows staged in shared memory, `STRIDE` bytes apart; `k0` counts from the staged chunk.
template <bool SPLIT, int STRIDE> struct SharedRows {
    static constexpr bool ROLLED = true, EVEN = false;
    const u8* lane_row;  // row g of the chunk, at this lane's first value
    u32 minus[4];
    DEV SharedRows(const u8* chunk, const Lane& l, u32 bias)
        : lane_row(chunk + l.g * STRIDE + (SPLIT ? 8 : 16) * l.t), minus{bias, bias, bias, bias} {}
    DEV uint4 get(int nt, u32 k0) const {
        const u8* p = lane_row + nt * (8 * STRIDE) + 2 * k0;
        if (!SPLIT) return *(const uint4*)p;
        uint2 a = *(const uint2*)p, b = *(const uint2*)(p + 32);
        return make_uint4(a.x, a.y, b.x, b.y);
    }
};

/// acc += d * c by rows; `EVEN`: in the even columns only.
template <bool EVEN> DEV void scaled_add(float (&acc)[4], const float (&c)[4], const float (&d)[2]) {
#pragma unroll
    for (int i = 0; i < 4; i += EVEN ? 2 : 1) acc[i] = fmaf(d[i >> 1], c[i], acc[i]);
}

/// acc += 32 values under block scales, from value `k0` of the rows, the q-th 32 of this turn.
template <class W, int MT, int NB, class X>
DEV void scaled_product(const typename W::Open (&w)[MT], int q, const X& x, u32 k0, float (&acc)[MT][NB][4]) {
    // Steps under one scale: both of the 32 values, or one at a time.
    constexpr int STEPS = W::GROUP / 16;
#pragma unroll
    for (int first = 0; first < 2; first += STEPS) {
        u32 a[MT][STEPS][4];
        float d[MT][2], low[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int s = 0; s < STEPS; s++) W::frag(w[m], q, first + s, 0, a[m][s]);
            W::scales(w[m], (2 * q + first) / STEPS, d[m], low[m]);
        }
#pragma unroll
        for (int n = 0; n < NB; n++) {
            uint4 v = x.get(n, k0);
            u32 b[2][2] = {{v.x, v.y}, {v.z, v.w}};
            float bias[4] = {0, 0, 0, 0};
            if constexpr (W::BIAS != 0) {
#pragma unroll
                for (int s = 0; s < STEPS; s++) mma_bf16(bias, x.minus, b[first + s]);
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
                float c[4] = {bias[0], bias[1], bias[2], bias[3]};
#pragma unroll
                for (int s = 0; s < STEPS; s++) mma_bf16(c, a[m][s], b[first + s]);
                scaled_add<X::EVEN>(acc[m][n], c, d[m]);
                if constexpr (W::BIAS != 0) scaled_add<X::EVEN>(acc[m][n], bias, low[m]);
            }
        }
    }
}

/// acc += 32 values without scales.
template <class W, int MT, int NB, class X>
DEV void plain_product(const typename W::Open (&w)[MT], const X& x, u32 k0, float (&acc)[MT][NB][4]) {
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int part = 0; part < W::PARTS; part++) {
            u32 a[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) W::frag(w[m], 0, step, part, a[m]);
#pragma unroll
            for (int n = 0; n < NB; n++) {
                uint4 v = x.get(n, k0);
                u32 b[2] = {step ? v.z : v.x, step ? v.w : v.y};
#pragma unroll
                for (int m = 0; m < MT; m++) mma_bf16(acc[m][n], a[m], b);
            }
        }
}

/// acc += unit . x for MT tiles by NB column tiles; `k0` is the unit's first value in the rows of `x`.
template <class W, int MT, int NB, class X>
DEV void unit_product(const typename W::Regs (&regs)[MT], const X& x, u32 k0, float (&acc)[MT][NB][4]) {
    using Open = typename W::Open;
    auto all = [&](Open(&w)[MT]) {
        // A loop that stays a loop where the rows are staged: unrolled, the decoded values of all turns are
        // alive at once and spill.
        constexpr int TURNS = W::UNIT / W::TURN, UNROLL = X::ROLLED ? 1 : TURNS;
#pragma unroll UNROLL
        for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
            for (int q = 0; q < W::TURN / 32; q++) {
                u32 k = k0 + W::TURN * turn + 32 * q;
                if constexpr (W::GROUP == 0) plain_product<W, MT, NB>(w, x, k, acc);
                else scaled_product<W, MT, NB>(w, q, x, k, acc);
            }
#pragma unroll
            for (int m = 0; m < MT; m++) W::turn(w[m]);
        }
    };
    if constexpr (MT == 1) {
        Open w[1] = {Open(regs[0])};
        all(w);
    } else {
        Open w[2] = {Open(regs[0]), Open(regs[1])};
        all(w);
    }
}

/// A warp's walk over units [begin, end) of MT tiles with U units in flight.
template <class W, int MT, int U> struct Stream {
    typename W::Regs w[U][MT];
    DEV void load(int j, const typename W::Src* src, u32 unit) {
#pragma unroll
        for (int m = 0; m < MT; m++) W::load(w[j][m], src[m], unit);
    }
    /// Starts the first loads: weights depend on no other kernel.
    DEV void prime(const typename W::Src* src, u32 begin, u32 end) {
#pragma unroll
        for (int j = 0; j < U; j++)
            if (begin + j < end) load(j, src, begin + j);
    }
    /// `after(u)` is called when unit u is in the sums.
    template <int NB, class X, class After>
    DEV void run(const typename W::Src* src, u32 begin, u32 end, const X& x, float (&acc)[MT][NB][4],
                 After after) {
        for (u32 u = begin; u < end; u += U) {
#pragma unroll
            for (int j = 0; j < U; j++) {
                if (u + j >= end) break;
                unit_product<W, MT, NB>(w[j], x, (u + j) * W::UNIT, acc);
                if (u + j + U < end) load(j, src, u + j + U);
                after(u + j);
            }
        }
    }
};

/// What happens to a product: stored, added to f32 rows, or silu(y) * y2 stored in f32 or bf16.
enum { STORE = 0, ACCUMULATE = 1, SILU_MUL = 2, SILU_MUL_BF16 = 3 };

DEV void finish(int epilogue, void* out, u64 at, float y, float y2) {
    if (epilogue == STORE) ((float*)out)[at] = y;
    if (epilogue == ACCUMULATE) ((float*)out)[at] += y;
    if (epilogue == SILU_MUL) ((float*)out)[at] = silu(y) * y2;
    if (epilogue == SILU_MUL_BF16) ((u16*)out)[at] = f32_to_bf16(silu(y) * y2);
}

// ---- one tile, its slices side by side in the warps of a block --------------------------------------------

/// Floats of one slice's 16 x 8 results in shared memory: eight columns of 16, spread over the banks.
constexpr int PART = 160;

DEV void put_part(float* part, const Lane& l, const float (&c)[4]) {
    float* p = part + 40 * l.t + l.g;
    p[0] = c[0], p[20] = c[1], p[8] = c[2], p[28] = c[3];
}
/// Streams slices [first, first + COUNT) one after another and puts each into its place from `parts` on; the
/// first weights are on their way.
template <int COUNT, int UNITS, int SLICES, class W, int U, class X>
DEV void run_slices(Stream<W, 1, U>& stream, const typename W::Src (&src)[1], u32 first, u32 begin, u32 end,
                    const X& x, float* parts, const Lane& l) {
    float acc[1][1][4] = {};
    if constexpr (COUNT == 1) {
        stream.template run<1>(src, begin, end, x, acc, [](u32) {});
        put_part(parts, l, acc[0][0]);
    } else {
        u32 bound = slice_begin(UNITS, SLICES, first + 1);
        stream.template run<1>(src, begin, end, x, acc, [&](u32 u) {
            if (u + 1 != bound) return;
            put_part(parts, l, acc[0][0]);
            acc[0][0][0] = acc[0][0][1] = acc[0][0][2] = acc[0][0][3] = 0;
            parts += PART, first++, bound = slice_begin(UNITS, SLICES, first + 1);
        });
    }
}

/// Adds the slices in index order.
template <int SLICES> DEV float sum_parts(const float* part, u32 row, u32 col) {
    float y = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) y += part[s * PART + 20 * col + row];
    return y;
}

/// total += acc; acc = 0.
template <int MT, int NB> DEV void fold(float (&total)[MT][NB][4], float (&acc)[MT][NB][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                total[m][n][i] += acc[m][n][i];
                acc[m][n][i] = 0;
            }
}

// ---- MT tiles a warp, NB column tiles, rows staged in shared memory ---------------------------------------

/// Sizes of a block that stages rows: `KC` values of each of 8 NB rows at a time, `STAGES` buffers.
template <int F, int K, int NB, int KC, int STAGES> struct Staging {
    static constexpr bool SPLIT = Weights<F, K, true>::SPLIT;
    // Eight rows of a wide load (16 bytes a lane) or four of a split one (8 bytes) fall into different banks.
    static constexpr int STRIDE = 2 * KC + (SPLIT ? 32 : 64), BYTES = 8 * NB * STRIDE;
    static constexpr u32 NONE = 0xffffffffu;

    /// Copies values [k0, k0 + KC) of the rows listed in `index`; zeros for no row and beyond K.
    static DEV void copy(u8* buffer, const u16* x, const u32* index, u32 k0) {
        for (u32 i = threadIdx.x; i < 8 * NB * KC / 8; i += blockDim.x) {
            u32 column = i / (KC / 8), k = k0 + 8 * (i % (KC / 8)), row = index[column];
            bool take = row != NONE && k < K;
            cp_async16_or_zero(buffer + column * STRIDE + 2 * (k - k0), take ? x + u64(row) * K + k : x,
                               take);
        }
    }
};

/// Where the MT tiles of a warp come from.
template <class W, int MT> struct Sources;
template <class W> struct Sources<W, 1> {
    typename W::Src of[1];
    DEV Sources(const u8* const (&m)[1], const u32 (&row0)[1], u32 n, const Lane& l)
        : of{{m[0], n, row0[0], l}} {}
};
template <class W> struct Sources<W, 2> {
    typename W::Src of[2];
    DEV Sources(const u8* const (&m)[2], const u32 (&row0)[2], u32 n, const Lane& l)
        : of{{m[0], n, row0[0], l}, {m[1], n, row0[1], l}} {}
};

/// total = sum over units [u0, u1), slices folded in order. `index` lists the rows of this block's columns;
/// `ready()` is called once the first weights are on their way and returns whether there is any work (the
/// same for all threads).
template <int F, int K, bool FULL, int MT, int NB, int KC, int STAGES, int AHEAD, class Ready>
DEV bool staged_product(const u8* const (&matrix)[MT], const u32 (&row0)[MT], u32 n, bool active,
                        const u16* x, const u32* index, u8* shared, u32 u0, u32 u1, Ready ready,
                        float (&total)[MT][NB][4]) {
    using W = Weights<F, K, FULL>;
    using S = Staging<F, K, NB, KC, STAGES>;
    constexpr int CU = KC / W::UNIT, U = CU * AHEAD;  // weights are loaded AHEAD chunks before their use
    constexpr int UNITS = units_of(K, W::UNIT), SLICES = slices_of(K);
    static_assert(CU >= 1, "a chunk is whole units");
    Lane l;
    Sources<W, MT> sources(matrix, row0, n, l);
    const typename W::Src* src = sources.of;
    Stream<W, MT, U> weights;
    if (active) weights.prime(src, u0, u1);
    if (!ready()) return false;
    u32 chunks = (u1 - u0 + CU - 1) / CU;
    for (u32 c = 0; c < STAGES - 1; c++) {
        if (c < chunks) S::copy(shared + c * S::BYTES, x, index, (u0 + c * CU) * W::UNIT);
        cp_async_commit();
    }
    float acc[MT][NB][4] = {};
    u32 slice = 0;
    while (slice_begin(UNITS, SLICES, slice + 1) <= u0) slice++;
    u32 bound = slice_begin(UNITS, SLICES, slice + 1);
    for (u32 c0 = 0; c0 < chunks; c0 += AHEAD) {
#pragma unroll
        for (int cc = 0; cc < AHEAD; cc++) {
            u32 c = c0 + cc;
            if (c >= chunks) break;
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            u32 next = c + STAGES - 1;
            if (next < chunks)
                S::copy(shared + next % STAGES * S::BYTES, x, index, (u0 + next * CU) * W::UNIT);
            cp_async_commit();
            SharedRows<S::SPLIT, S::STRIDE> rows(shared + c % STAGES * S::BYTES, l, W::BIAS);
#pragma unroll
            for (int i = 0; i < CU; i++) {
                u32 u = u0 + c * CU + i;
                if (!active || u >= u1) break;
                unit_product<W, MT, NB>(weights.w[cc * CU + i], rows, i * W::UNIT, acc);
                if (u + U < u1) weights.load(cc * CU + i, src, u + U);
                if (u + 1 == bound) {
                    fold(total, acc);
                    slice++, bound = slice_begin(UNITS, SLICES, slice + 1);
                }
            }
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    return true;
}
