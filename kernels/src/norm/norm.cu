// RMS norm, one block a row. The one trick: the weights are in registers before the row exists, so that
// between the wait and the stores there is only the row's own load and one block sum.
//
// Defines: HIDDEN (a multiple of 4), THREADS, W_FORMAT, PLUS_ONE.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 QUADS = HIDDEN / 4, PER = (QUADS + THREADS - 1) / THREADS;

/// `gather` may be null (all rows); `out_f32` and `out_bf16` may be null. Output rows are `width` values, of
/// which columns `column ..` are written.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_rows(const float* x, const void* weight, const u32* gather,
              float* out_f32, u16* out_bf16, const Shape* shape,
              float eps, u32 width, u32 column) {
    __shared__ float part[THREADS / 32];
    pdl_launch();
    float4 w[PER], v[PER];
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 q = threadIdx.x + i * THREADS;
        w[i] = q < QUADS ? small4_at<W_FORMAT>(weight, q) : make_float4(0, 0, 0, 0);
    }
    u32 row = blockIdx.x, rows = gather ? shape->out_rows : shape->rows;
    pdl_wait();
    if (row >= rows) return;
    const float* from = x + u64(gather ? gather[row] : row) * HIDDEN;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 q = threadIdx.x + i * THREADS;
        v[i] = q < QUADS ? ld_f4(from + 4 * q) : make_float4(0, 0, 0, 0);
        sum = sum_squares4(v[i], sum);
    }
    sum = block_sum<THREADS / 32>(sum, part);
    float factor = 1.0f / sqrtf(sum / float(HIDDEN) + eps);
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 q = threadIdx.x + i * THREADS;
        if (q >= QUADS) break;
        float one = PLUS_ONE ? 1.0f : 0.0f;
        float4 y =
            make_float4(__fmul_rn(v[i].x * factor, one + w[i].x), __fmul_rn(v[i].y * factor, one + w[i].y),
                        __fmul_rn(v[i].z * factor, one + w[i].z), __fmul_rn(v[i].w * factor, one + w[i].w));
        u64 at = u64(row) * width + column + 4 * q;
        if (out_f32) st_f4(out_f32 + at, y);
        if (out_bf16) st_bf16x4(out_bf16 + at, y);
    }
}
