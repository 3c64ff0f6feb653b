// What the row kernels share: small weights in their stored type, gates, sums over a block, row stores.
#pragma once
#include "common.cuh"

// Stored types of small weights, as the bindings pass them.
#define STORED_F32 0
#define STORED_BF16 1
#define STORED_F16 2

/// Element `i` of a small weight.
template <int STORED>
DEV float small_at(const void* w, u32 i) {
    if (STORED == STORED_F32) return ((const float*)w)[i];
    u16 bits = ((const u16*)w)[i];
    return STORED == STORED_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// Elements `4 i .. 4 i + 4` of a small weight.
template <int STORED>
DEV float4 small4_at(const void* w, u32 i) {
    if (STORED == STORED_F32) return ((const float4*)w)[i];
    ushort4 b = ((const ushort4*)w)[i];
    if (STORED == STORED_BF16)
        return make_float4(bf16_to_f32(b.x), bf16_to_f32(b.y), bf16_to_f32(b.z), bf16_to_f32(b.w));
    return make_float4(f16_to_f32(b.x), f16_to_f32(b.y), f16_to_f32(b.z), f16_to_f32(b.w));
}

DEV float4 ld_f4(const float* p) {
    uint4 v = ld16(p);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

DEV void st_f4(float* p, float4 v) {
    st16(p,
         make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)));
}

/// Four values rounded to BF16.
DEV void st_bf16x4(u16* p, float4 v) { *(uint2*)p = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)); }

/// 1 / (1 + e^-x) without overflow.
DEV float sigmoid(float x) {
    float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// x sigmoid(x), 0 at -inf by its limit.
DEV float silu(float x) { return x == -__int_as_float(0x7f800000) ? 0.0f : x * sigmoid(x); }

DEV float softplus(float x) { return x != x ? x : fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

DEV float sum_squares4(float4 v, float sum) {
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
}

/// Sum over a block of `COUNT` warps: lanes by halves, then the warps in order. `part` holds COUNT floats;
/// every thread gets the same bits. The caller syncs before it uses `part` again.
template <int COUNT>
DEV float block_sum(float v, float* part) {
    v = warp_sum(v);
    if (COUNT == 1) return v;
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = part[0];
#pragma unroll
    for (int w = 1; w < COUNT; w++) sum += part[w];
    return sum;
}

/// A key whose unsigned order is the order of the floats, with -0 equal to 0. Not for NaN.
DEV u32 ordered_key(float x) {
    u32 b = __float_as_uint(x + 0.0f);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

DEV float ordered_value(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

DEV bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
