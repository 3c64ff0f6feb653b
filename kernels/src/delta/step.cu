// One token of the gated delta rule: a block takes one value head of one sequence and its state passes
// through registers once: read, decayed, corrected, written.
//
// The one trick: y = S'^T q with S' = alpha S + k delta^T is alpha S^T q + (k . q) delta, so one sweep gives
// both S^T k and S^T q, one exchange between the warps gives delta and y, and the state is written while the
// output is normed. Neither state nor slots depend on the kernels before this one, so the whole state is in
// flight before the wait.
//
// Defines: ROWS (of the state a thread holds: 8 or 16), K_HEADS, V_HEADS, DK (a multiple of ROWS), DV (a
// multiple of 32), A_FORMAT, DT_FORMAT, N_FORMAT.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 QUADS = DV / 4, GROUPS = DK / ROWS, THREADS = QUADS * GROUPS;
constexpr u32 KEYS = K_HEADS * DK, WIDTH = 2 * KEYS + V_HEADS * DV;
static_assert(THREADS % 32 == 0 && THREADS >= DV && THREADS <= 1024, "shape of a head");

/// Sums that every warp makes for itself: q.q, k.k and k.q of the raw rows.
struct Dots {
    float qq, kk, kq;
    DEV Dots(const float* q, const float* k) {
        qq = kk = kq = 0;
#pragma unroll
        for (u32 i = threadIdx.x % 32; i < DK; i += 32) {
            float x = q[i], y = k[i];
            qq = fmaf(x, x, qq), kk = fmaf(y, y, kk), kq = fmaf(x, y, kq);
        }
        qq = warp_sum(qq), kk = warp_sum(kk), kq = warp_sum(kq);
    }
};

DEV float4 fma4(float s, float4 a, float4 b) {
    return make_float4(fmaf(s, a.x, b.x), fmaf(s, a.y, b.y), fmaf(s, a.z, b.z), fmaf(s, a.w, b.w));
}

/// Two blocks a multiprocessor: one's loads run while the other exchanges sums and stores.
extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 512 ? 2 : 1)
    delta_step(const float* qkv, const float* z, const float* a,
               const float* b, const void* a_log, const void* dt_bias,
               const void* norm, float* state, const u32* seg_start,
               const u32* slot, float* out_f32, u16* out_bf16,
               const Shape* shape, float eps) {
    __shared__ float4 sums[2][GROUPS][QUADS];
    __shared__ float4 change[QUADS];
    __shared__ float squares[DV / 32];
    pdl_launch();
    u32 h = blockIdx.x, s = blockIdx.y, quad = threadIdx.x % QUADS, group = threadIdx.x / QUADS,
        c = threadIdx.x;
    if (s >= shape->seqs) {
        pdl_wait();
        return;
    }
    float* mine = state + ((u64(slot[s]) * V_HEADS + h) * DK + ROWS * group) * DV + 4 * quad;
    float4 w[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) w[i] = ld_f4(mine + i * DV);
    float rate = -expf(small_at<A_FORMAT>(a_log, h)), bias = small_at<DT_FORMAT>(dt_bias, h);
    float scale = c < DV ? small_at<N_FORMAT>(norm, c) : 0;
    u32 row = seg_start[s];
    pdl_wait();
    const float* q = qkv + u64(row) * WIDTH + h / (V_HEADS / K_HEADS) * DK;
    const float* k = q + KEYS;
    float value = c < DV ? qkv[u64(row) * WIDTH + 2 * KEYS + h * DV + c] : 0;
    float gate = c < DV ? z[u64(row) * (V_HEADS * DV) + h * DV + c] : 0;
    float alpha = expf(rate * softplus(a[row * V_HEADS + h] + bias)), beta = sigmoid(b[row * V_HEADS + h]);
    float ks[ROWS], qs[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i += 4) {
        float4 x = ld_f4(k + ROWS * group + i), y = ld_f4(q + ROWS * group + i);
        ks[i] = x.x, ks[i + 1] = x.y, ks[i + 2] = x.z, ks[i + 3] = x.w;
        qs[i] = y.x, qs[i + 1] = y.y, qs[i + 2] = y.z, qs[i + 3] = y.w;
    }
    Dots dots(q, k);
    float4 with_k = make_float4(0, 0, 0, 0), with_q = with_k;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) with_k = fma4(ks[i], w[i], with_k), with_q = fma4(qs[i], w[i], with_q);
    sums[0][group][quad] = with_k, sums[1][group][quad] = with_q;
    float k_unit = 1.0f / sqrtf(dots.kk + 1e-6f), q_unit = 1.0f / (sqrtf(dots.qq + 1e-6f) * sqrtf(float(DK)));
    __syncthreads();
    float y = 0;
    if (c < DV) {
        float m = 0, n = 0;
#pragma unroll
        for (u32 g = 0; g < GROUPS; g++)
            m += ((const float*)sums[0][g])[c], n += ((const float*)sums[1][g])[c];
        float delta = beta * (value - alpha * (m * k_unit));
        y = fmaf(dots.kq * k_unit * q_unit, delta, alpha * (n * q_unit));
        ((float*)change)[c] = delta * k_unit;
        float square = warp_sum(y * y);
        if (c % 32 == 0) squares[c / 32] = square;
    }
    __syncthreads();
    float4 d = change[quad];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        float4 old = make_float4(alpha * w[i].x, alpha * w[i].y, alpha * w[i].z, alpha * w[i].w);
        st_f4(mine + i * DV, fma4(ks[i], d, old));
    }
    if (c >= DV) return;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < DV / 32; i++) sum += squares[i];
    float result = y * (1.0f / sqrtf(sum / float(DV) + eps)) * scale * silu(gate);
    u64 at = u64(row) * (V_HEADS * DV) + h * DV + c;
    if (out_f32) out_f32[at] = result;
    if (out_bf16) out_bf16[at] = f32_to_bf16(result);
}
