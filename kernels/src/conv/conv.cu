// Causal depthwise convolution with SiLU. A thread owns four channels of TIME rows of one sequence; its
// window is in registers. Rows before a block's first come from `u` itself; only the first block of a
// sequence reads the state, and it alone writes it, so that no block can overwrite what another still has to
// read.
//
// Defines: DIM (a multiple of 4), TAPS, W_FORMAT, TIME.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 QUADS = DIM / 4, PAST = TAPS - 1;

/// Row `t` of a sequence's history: negative rows are the state's, oldest first.
DEV float4 history(const float* u, const float* state, int t, u32 q) {
    return t >= 0 ? ld_f4(u + u64(u32(t)) * DIM + 4 * q)
                  : ld_f4(state + u64(u32(int(PAST) + t)) * DIM + 4 * q);
}

DEV float tap_sum(const float (&w)[TAPS], const float (&x)[TAPS]) {
    float sum = __fmul_rn(w[0], x[0]);
#pragma unroll
    for (u32 j = 1; j < TAPS; j++) sum = __fmaf_rn(w[j], x[j], sum);
    return silu(sum);
}

extern "C" __global__ void __launch_bounds__(128)
    conv_rows(const float* u, const void* weight, float* state,
              const u32* seg_start, const u32* slot, float* out,
              const Shape* shape) {
    pdl_launch();
    u32 q = blockIdx.x * 128 + threadIdx.x, seq = blockIdx.y, first_row = blockIdx.z * TIME;
    float w[4][TAPS];
    if (q < QUADS) {
#pragma unroll
        for (u32 c = 0; c < 4; c++)
#pragma unroll
            for (u32 j = 0; j < TAPS; j++) w[c][j] = small_at<W_FORMAT>(weight, (4 * q + c) * TAPS + j);
    }
    bool live = seq < shape->seqs && q < QUADS;
    u32 start = live ? seg_start[seq] : 0, rows = live ? seg_start[seq + 1] - start : 0;
    float* past = state + u64(live ? slot[seq] : 0) * PAST * DIM;
    pdl_wait();
    if (!live || first_row >= rows) return;
    const float* from = u + u64(start) * DIM;
    float* to = out + u64(start) * DIM;
    float4 window[TAPS];
#pragma unroll
    for (u32 j = 0; j < PAST; j++) window[j] = history(from, past, int(first_row) + int(j) - int(PAST), q);
    if (first_row == 0) {
        float4 last[PAST + 1];
#pragma unroll
        for (u32 j = 0; j < PAST; j++) last[j] = history(from, past, int(rows) + int(j) - int(PAST), q);
#pragma unroll
        for (u32 j = 0; j < PAST; j++) st_f4(past + u64(j) * DIM + 4 * q, last[j]);
    }
    u32 end = min(rows, first_row + TIME);
#pragma unroll 2
    for (u32 t = first_row; t < end; t++) {
        window[PAST] = ld_f4(from + u64(t) * DIM + 4 * q);
        float x[4][TAPS];
#pragma unroll
        for (u32 j = 0; j < TAPS; j++) {
            x[0][j] = window[j].x, x[1][j] = window[j].y, x[2][j] = window[j].z, x[3][j] = window[j].w;
        }
        st_f4(to + u64(t) * DIM + 4 * q, make_float4(tap_sum(w[0], x[0]), tap_sum(w[1], x[1]),
                                                     tap_sum(w[2], x[2]), tap_sum(w[3], x[3])));
#pragma unroll
        for (u32 j = 0; j < PAST; j++) window[j] = window[j + 1];
    }
}
