// Types, number conversions and every line of inline PTX of the project, as small functions.
//
// One source serves sm_90a, sm_120a and sm_121a, and under SPARK_EMU the CPU emulator (kernels/tests/emu),
// which supplies what the `emu::` calls name. No toolkit header is included, so NVRTC needs nothing beside
// these files.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/// The real sizes of a step, in device memory: at most the bucket's.
struct Shape {
    u32 rows, out_rows, seqs, pad;
};

#ifdef SPARK_EMU
#define SPARK_DYNAMIC_SHARED(name) unsigned char* name = emu::dynamic_shared()
#else
#define SPARK_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

#define DEV __device__ __forceinline__

// ---- numbers ----------------------------------------------------------------------------------------------

DEV float bf16_to_f32(u16 b) { return __uint_as_float(u32(b) << 16); }
/// The two values of a bf16 pair, low half first.
DEV float bf16_lo(u32 pair) { return __uint_as_float(pair << 16); }
DEV float bf16_hi(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

#ifdef SPARK_EMU
DEV u16 f32_to_bf16(float x) {
    u32 b = __float_as_uint(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return u16((b | 0x00400000u) >> 16);
    return u16((b + 0x7fffu + ((b >> 16) & 1)) >> 16);
}
/// Two f32 rounded to nearest even as a bf16 pair, `lo` in the lower half.
DEV u32 pack_bf16(float lo, float hi) { return u32(f32_to_bf16(lo)) | u32(f32_to_bf16(hi)) << 16; }
/// Exact value of a binary16, subnormals included.
DEV float f16_to_f32(u16 h) {
    float m = __uint_as_float(u32(h & 0x7fff) << 13) * __uint_as_float(0x77800000u);
    u32 special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return __uint_as_float(__float_as_uint(m) | special | u32(h & 0x8000) << 16);
}
/// Binary16 to nearest even.
DEV u16 f32_to_f16(float x) {
    _Float16 h = (_Float16)x;
    u16 out;
    __builtin_memcpy(&out, &h, 2);
    return out;
}
/// a - b of bf16 pairs, each rounded once.
DEV u32 sub_bf16x2(u32 a, u32 b) { return pack_bf16(bf16_lo(a) - bf16_lo(b), bf16_hi(a) - bf16_hi(b)); }
DEV u32 add_bf16x2(u32 a, u32 b) { return pack_bf16(bf16_lo(a) + bf16_lo(b), bf16_hi(a) + bf16_hi(b)); }
/// (a & mask) | bits in one instruction.
DEV u32 and_or(u32 a, u32 mask, u32 bits) { return (a & mask) | bits; }
#else
DEV u32 and_or(u32 a, u32 mask, u32 bits) {
    u32 out;  // written out: the compiler splits it in two where both operands are constants
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(mask), "r"(bits));
    return out;
}
DEV u32 pack_bf16(float lo, float hi) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
    return out;
}
DEV u16 f32_to_bf16(float x) {
    u16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
}
DEV float f16_to_f32(u16 h) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(h));
    return out;
}
DEV u16 f32_to_f16(float x) {
    u16 out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(x));
    return out;
}
DEV u32 sub_bf16x2(u32 a, u32 b) {
    u32 out;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
DEV u32 add_bf16x2(u32 a, u32 b) {
    u32 out;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
#endif

// ---- memory -----------------------------------------------------------------------------------------------

#ifdef SPARK_EMU
/// Plain 16-byte load: for what an earlier kernel wrote.
DEV uint4 ld16(const void* p) { return *(const uint4*)emu::aligned(p, 16); }
/// 16 bytes of weights: read once, so they skip the first cache.
DEV uint4 ld16_stream(const void* p) { return *(const uint4*)emu::aligned(p, 16); }
/// The same, kept in the first cache for a second use.
DEV uint4 ld16_keep(const void* p) { return ld16_stream(p); }
DEV uint2 ld8_keep(const void* p) { return *(const uint2*)emu::aligned(p, 8); }
DEV uint2 ld8_stream(const void* p) { return *(const uint2*)emu::aligned(p, 8); }
DEV u32 ld4_stream(const void* p) { return *(const u32*)emu::aligned(p, 4); }
DEV u16 ld2_stream(const void* p) { return *(const u16*)emu::aligned(p, 2); }
DEV void st16(void* p, uint4 v) { *(uint4*)emu::aligned(p, 16) = v; }
/// A load that sees what other blocks published before their fence.
DEV float ld_fresh(const float* p) { return *p; }
DEV float2 ld_fresh2(const float* p) { return *(const float2*)emu::aligned(p, 8); }
DEV float4 ld_fresh4(const float* p) { return *(const float4*)emu::aligned(p, 16); }
/// Asks for lines of the last cache; changes no result.
DEV void prefetch_l2(const void*, u32) {}
#else
DEV uint4 ld16(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
DEV uint4 ld16_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEV uint4 ld16_keep(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
DEV uint2 ld8_keep(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEV uint2 ld8_stream(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y)
                 : "l"(p));
    return v;
}
DEV u32 ld4_stream(const void* p) {
    u32 v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEV u16 ld2_stream(const void* p) {
    u16 v;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
DEV void st16(void* p, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEV float ld_fresh(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
DEV float2 ld_fresh2(const float* p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}
DEV float4 ld_fresh4(const float* p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
DEV void prefetch_l2(const void* p, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(p), "r"(bytes));
}
#endif

// ---- asynchronous copies to shared memory -----------------------------------------------------------------

#ifdef SPARK_EMU
DEV void cp_async16(void* to, const void* from) { emu::cp_async(to, from, 16); }
/// Copies 16 bytes, or writes zeros where `take` is false (`from` must still be a valid address).
DEV void cp_async16_or_zero(void* to, const void* from, bool take) {
    emu::cp_async(to, from, 16, take ? 16 : 0);
}
DEV void cp_async_commit() { emu::cp_async_commit(); }
template <int N> DEV void cp_async_wait() { emu::cp_async_wait(N); }
#else
DEV u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
DEV void cp_async16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from)
                 : "memory");
}
DEV void cp_async16_or_zero(void* to, const void* from, bool take) {
    u32 bytes = take ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#endif

// ---- tensor cores -----------------------------------------------------------------------------------------

#ifdef SPARK_EMU
/// d += a * b, m16n8k16, bf16 inputs, f32 sums. All lanes of the warp.
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { emu::mma_bf16(d, a, b); }
DEV void ldmatrix_x4(u32 (&r)[4], const void* row) { emu::ldmatrix(r, 4, row, false); }
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row) { emu::ldmatrix(r, 4, row, true); }
DEV void ldmatrix_x2(u32 (&r)[2], const void* row) { emu::ldmatrix(r, 2, row, false); }
DEV void ldmatrix_x2_trans(u32 (&r)[2], const void* row) { emu::ldmatrix(r, 2, row, true); }
#else
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEV void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEV void ldmatrix_x2(u32 (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
DEV void ldmatrix_x2_trans(u32 (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
#endif

// ---- programmatic dependent launch ------------------------------------------------------------------------

#ifdef SPARK_EMU
DEV void pdl_wait() {}
DEV void pdl_launch() {}
#else
/// Waits until the kernels before this one have ended and their writes are visible.
DEV void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets the next kernel start once every block of this one has got here.
DEV void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#endif

// ---- functions --------------------------------------------------------------------------------------------

#define INFINITY_F (__int_as_float(0x7f800000))
/// 2^x within 2 ulp, 0 below 2^-126; -inf gives 0, NaN stays.
#ifdef SPARK_EMU
DEV float exp2_fast(float x) { return x < -126.0f ? 0.0f : exp2f(x); }
#else
DEV float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// ---- small sums -------------------------------------------------------------------------------------------

/// Sum over the warp by halves (16, 8, 4, 2, 1): every lane gets the same bits.
DEV float warp_sum(float v) {
#pragma unroll
    for (int half = 16; half > 0; half >>= 1) v += __shfl_xor_sync(0xffffffffu, v, half);
    return v;
}
DEV float warp_max(float v) {
#pragma unroll
    for (int half = 16; half > 0; half >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, half));
    return v;
}

/// Contracts of a named barrier: `count` threads of the block, a multiple of 32.
#ifdef SPARK_EMU
DEV void named_barrier(u32 id, u32 count) { emu::named_barrier(id, count); }
#else
DEV void named_barrier(u32 id, u32 count) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(count) : "memory");
}
#endif
