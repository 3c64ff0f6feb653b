// Query/key norm, rotary embedding and the append to the paged cache: one warp a head. The one trick: angles
// depend on the position alone, so they are ready before the wait; after it there is one load, one warp sum
// and the stores.
//
// The angle is the f64 product of position and frequency, as on the host, reduced by multiples of pi/2 in f64
// and finished by f32 polynomials: within 2 ulp of the host's table at any position.
//
// Defines: HEAD_DIM (a multiple of 4), ROTARY (even, at most HEAD_DIM), FREQUENCIES ({..}, ROTARY / 2 of
// them), HEADS, KV_HEADS, Q_STRIDE, Q_FORMAT, K_FORMAT (stored types of the norms), PLUS_ONE, PAGE.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 HALF = ROTARY / 2, QUADS = HEAD_DIM / 4, PER = (QUADS + 31) / 32, WARPS = 4;
__device__ const double FREQUENCY[HALF ? HALF : 1] = FREQUENCIES;

struct Turn {
    float c, s;
};

/// cos and sin of `position` times frequency `m`.
DEV Turn turn(u32 position, u32 m) {
    double angle = double(position) * FREQUENCY[m];
    double k = rint(angle * 0.63661977236758134308);
    double left = fma(-k, 1.57079632679489655800, angle);
    float r = float(fma(-k, 6.12323399573676603587e-17, left)), r2 = r * r;
    int quadrant = int((long long)k & 3);
    float s = fmaf(
        r * r2, fmaf(r2, fmaf(r2, fmaf(r2, 2.7557319e-6f, -1.9841270e-4f), 8.3333333e-3f), -0.16666667f), r);
    float c = fmaf(
        r2,
        fmaf(r2, fmaf(r2, fmaf(r2, fmaf(r2, -2.7557319e-7f, 2.4801587e-5f), -1.3888889e-3f), 4.1666667e-2f),
             -0.5f),
        1.0f);
    float cosine = quadrant & 1 ? s : c, sine = quadrant & 1 ? c : s;
    return {quadrant == 1 || quadrant == 2 ? -cosine : cosine, quadrant >= 2 ? -sine : sine};
}

/// The lane's `PER` quads of one head: norm, then rotation with partners found through `row`.
template <int STORED>
DEV void head(const float* from, const void* weight, float eps, const Turn (&turns)[PER][4], float* row,
              float4 (&x)[PER]) {
    u32 lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 q = lane + 32 * i;
        x[i] = q < QUADS ? ld_f4(from + 4 * q) : make_float4(0, 0, 0, 0);
        sum = sum_squares4(x[i], sum);
    }
    float factor = 1.0f / sqrtf(warp_sum(sum) / float(HEAD_DIM) + eps), one = PLUS_ONE ? 1.0f : 0.0f;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 q = lane + 32 * i;
        if (q >= QUADS) break;
        float4 w = small4_at<STORED>(weight, q);
        x[i] = make_float4(__fmul_rn(x[i].x * factor, one + w.x), __fmul_rn(x[i].y * factor, one + w.y),
                           __fmul_rn(x[i].z * factor, one + w.z), __fmul_rn(x[i].w * factor, one + w.w));
        ((float4*)row)[q] = x[i];
    }
    __syncwarp();
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        float* v = (float*)&x[i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 d = 4 * (lane + 32 * i) + j;
            if (d >= ROTARY) break;
            Turn t = turns[i][j];
            float other = row[d < HALF ? d + HALF : d - HALF];
            v[j] = d < HALF ? __fmaf_rn(v[j], t.c, -__fmul_rn(other, t.s))
                            : __fmaf_rn(v[j], t.c, __fmul_rn(other, t.s));
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    rope_append(const float* q, const float* k, const float* v,
                const void* q_norm, const void* k_norm, const u32* pos,
                const u32* kv_slot, u16* k_cache, u16* v_cache,
                float* q_out, const Shape* shape, float eps) {
    __shared__ float4 rows_of[WARPS][QUADS];
    pdl_launch();
    u32 lane = threadIdx.x % 32, unit = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y;
    bool live = unit < HEADS + KV_HEADS && row < shape->rows;
    u32 position = live ? pos[row] : 0, slot = live ? kv_slot[row] : 0;
    Turn turns[PER][4];
#pragma unroll
    for (u32 i = 0; i < PER; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 d = 4 * (lane + 32 * i) + j;
            turns[i][j] = d < ROTARY ? turn(position, d < HALF ? d : d - HALF) : Turn{1, 0};
        }
    pdl_wait();
    if (!live) return;
    float* exchange = (float*)rows_of[threadIdx.x / 32];
    float4 x[PER];
    if (unit < HEADS) {
        u32 at = row * HEADS + unit;
        head<Q_FORMAT>(q + u64(at) * Q_STRIDE, q_norm, eps, turns, exchange, x);
#pragma unroll
        for (u32 i = 0; i < PER; i++) {
            u32 quad = lane + 32 * i;
            if (quad >= QUADS) break;
            u32 lo = pack_bf16(x[i].x, x[i].y), hi = pack_bf16(x[i].z, x[i].w);
            st_f4(q_out + u64(at) * HEAD_DIM + 4 * quad,
                  make_float4(bf16_lo(lo), bf16_hi(lo), bf16_lo(hi), bf16_hi(hi)));
        }
        return;
    }
    u32 h = unit - HEADS;
    u64 from = u64(row * KV_HEADS + h) * HEAD_DIM;
    u64 to = ((u64(slot / PAGE) * KV_HEADS + h) * PAGE + slot % PAGE) * HEAD_DIM;
    float4 value[PER];
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 quad = lane + 32 * i;
        value[i] = quad < QUADS ? ld_f4(v + from + 4 * quad) : make_float4(0, 0, 0, 0);
    }
    head<K_FORMAT>(k + from, k_norm, eps, turns, exchange, x);
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 quad = lane + 32 * i;
        if (quad >= QUADS) break;
        st_bf16x4(k_cache + to + 4 * quad, x[i]);
        st_bf16x4(v_cache + to + 4 * quad, value[i]);
    }
}
