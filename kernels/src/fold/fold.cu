// Adds each row's weighted expert outputs to the residual, slots in order: every load of a thread is in
// flight at once, so one trip to memory is all the node costs.
//
// Defines: TOP_K, HIDDEN (a multiple of 4).
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 QUADS = HIDDEN / 4;

extern "C" __global__ void __launch_bounds__(128)
    fold_rows(const float* y, const float* weights, float* residual,
              const Shape* shape) {
    pdl_launch();
    u32 q = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y, rows = shape->rows;
    pdl_wait();
    if (row >= rows || q >= QUADS) return;
    const float* from = y + u64(row) * TOP_K * HIDDEN + 4 * q;
    float* to = residual + u64(row) * HIDDEN + 4 * q;
    float4 r = ld_f4(to), sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (u32 s = 0; s < TOP_K; s++) {
        float4 v = ld_f4(from + u64(s) * HIDDEN);
        float g = weights[row * TOP_K + s];
        if (s == 0) {
            sum = make_float4(__fmul_rn(g, v.x), __fmul_rn(g, v.y), __fmul_rn(g, v.z), __fmul_rn(g, v.w));
        } else {
            sum = make_float4(__fmaf_rn(g, v.x, sum.x), __fmaf_rn(g, v.y, sum.y), __fmaf_rn(g, v.z, sum.z),
                              __fmaf_rn(g, v.w, sum.w));
        }
    }
    st_f4(to, make_float4(__fadd_rn(r.x, sum.x), __fadd_rn(r.y, sum.y), __fadd_rn(r.z, sum.z),
                          __fadd_rn(r.w, sum.w)));
}
