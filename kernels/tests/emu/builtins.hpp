// Functions and variables that the device compiler knows without a header.
#pragma once

#define threadIdx (emu::T->tid)
#define blockIdx (emu::block_index)
#define gridDim (emu::grid_dim)
#define blockDim (emu::block_dim)
#define warpSize 32

#define __syncthreads() emu::barrier(0, emu::block_threads, __LINE__)
#define __syncthreads_count(x) emu::sync_count(bool(x), __LINE__)
#define __syncthreads_or(x) (emu::sync_count(bool(x), __LINE__) != 0)
#define __syncthreads_and(x) (emu::sync_count(bool(x), __LINE__) == int(emu::block_threads))
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)
#define __trap() emu::fail("trap at line %d", __LINE__)

static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    emu::full(mask, "syncwarp", line);
    emu::collective("syncwarp", nullptr, 0, line);
}

#define EMU_SHUFFLE(name, move)                                                                     \
    template <class V>                                                                              \
    static inline V name(unsigned mask, V v, int by, int width = 32, int line = __builtin_LINE()) { \
        return emu::shuffle(emu::Move::move, mask, v, by, width, line);                             \
    }
EMU_SHUFFLE(__shfl_sync, Index)
EMU_SHUFFLE(__shfl_xor_sync, Xor)
EMU_SHUFFLE(__shfl_down_sync, Down)
EMU_SHUFFLE(__shfl_up_sync, Up)
#undef EMU_SHUFFLE

static inline unsigned __ballot_sync(unsigned mask, int bit, int line = __builtin_LINE()) {
    return emu::ballot(mask, bit != 0, line);
}
static inline int __any_sync(unsigned mask, int bit, int line = __builtin_LINE()) {
    return emu::ballot(mask, bit != 0, line) != 0;
}
static inline int __all_sync(unsigned mask, int bit, int line = __builtin_LINE()) {
    return emu::ballot(mask, bit != 0, line) == 0xffffffffu;
}
static inline unsigned __activemask() { return 0xffffffffu; }
template <class V>
static inline unsigned __match_any_sync(unsigned mask, V v, int line = __builtin_LINE()) {
    return emu::match_any(mask, v, line);
}
template <class V>
static inline V __reduce_add_sync(unsigned mask, V v, int line = __builtin_LINE()) {
    return emu::reduce(mask, v, line, [](V a, V b) { return V(a + b); });
}
template <class V>
static inline V __reduce_max_sync(unsigned mask, V v, int line = __builtin_LINE()) {
    return emu::reduce(mask, v, line, [](V a, V b) { return a > b ? a : b; });
}
template <class V>
static inline V __reduce_min_sync(unsigned mask, V v, int line = __builtin_LINE()) {
    return emu::reduce(mask, v, line, [](V a, V b) { return a < b ? a : b; });
}
template <class V>
static inline V __reduce_or_sync(unsigned mask, V v, int line = __builtin_LINE()) {
    return emu::reduce(mask, v, line, [](V a, V b) { return V(a | b); });
}

#define EMU_ATOMIC(name, expression)   \
    template <class V, class W>        \
    static inline V name(V* p, W by) { \
        V v = V(by), old = *p;         \
        *p = (expression);             \
        return old;                    \
    }
EMU_ATOMIC(atomicAdd, V(old + v))
EMU_ATOMIC(atomicSub, V(old - v))
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicOr, V(old | v))
EMU_ATOMIC(atomicAnd, V(old& v))
EMU_ATOMIC(atomicInc, old >= v ? V(0) : V(old + 1))
#undef EMU_ATOMIC
template <class V, class W, class X>
static inline V atomicCAS(V* p, W compare, X value) {
    V old = *p;
    if (old == V(compare)) *p = V(value);
    return old;
}

template <class V>
static inline V __ldg(const V* p) {
    emu::aligned(p, alignof(V));
    return *p;
}
template <class V>
static inline V __ldcg(const V* p) {
    return __ldg(p);
}
template <class V>
static inline V __ldcs(const V* p) {
    return __ldg(p);
}
template <class V, class W>
static inline void __stcs(V* p, W v) {
    emu::aligned(p, alignof(V));
    *p = v;
}
template <class V, class W>
static inline void __stcg(V* p, W v) {
    __stcs(p, v);
}

template <class To, class From>
static inline To emu_bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }

static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
// The C library has names of its own behind these.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return std::sqrt(x); }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    uint64_t both = uint64_t(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = s >> (4 * i) & 15, byte = unsigned(both >> (8 * (pick & 7))) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << (8 * i);
    }
    return out;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += int((signed char)(a >> (8 * i))) * int((signed char)(b >> (8 * i)));
    return c;
}

#define EMU_MINMAX(a, b, r)                                             \
    static inline r min(a x, b y) { return (r)x < (r)y ? (r)x : (r)y; } \
    static inline r max(a x, b y) { return (r)x > (r)y ? (r)x : (r)y; }
EMU_MINMAX(int, int, int)
EMU_MINMAX(unsigned, unsigned, unsigned)
EMU_MINMAX(int, unsigned, unsigned)
EMU_MINMAX(unsigned, int, unsigned)
EMU_MINMAX(long long, long long, long long)
EMU_MINMAX(unsigned long long, unsigned long long, unsigned long long)
EMU_MINMAX(unsigned long, unsigned long, unsigned long)
EMU_MINMAX(unsigned long long, unsigned, unsigned long long)
EMU_MINMAX(float, float, float)
EMU_MINMAX(double, double, double)
#undef EMU_MINMAX
