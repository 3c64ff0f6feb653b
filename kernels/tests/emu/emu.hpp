// CPU emulator of one CUDA grid, so that g++ can run our kernels where there is no GPU.
//
// Blocks run one after another (in a seeded order), the threads of a block as fibers that switch at barriers
// and warp collectives only. Shared memory starts as NaN in every block; copies by cp.async land at the wait
// that asks for them; a barrier or collective that not all threads reach, or reach from different lines, is
// an error that names the threads. Read first: `emu_run` in run.hpp, then `collective` here.
#pragma once
#define SPARK_EMU 1
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "builtin_types.hpp"

#define __device__
#define __host__
#define __global__ __attribute__((visibility("default"), noinline))
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
#define __restrict__ __restrict
// Kernel bodies only: a static of a template would need a section of its own.
#define __shared__ static __attribute__((section("emu_shared")))

extern "C" {
extern char __start_emu_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_emu_shared[] __attribute__((weak, visibility("hidden")));
void emu_switch(void** save, void* load) __attribute__((visibility("hidden")));
}

namespace emu {

constexpr unsigned WARP = 32, MAX_THREADS = 1024, BARRIERS = 16;
constexpr unsigned char POISON = 0xff;

struct Copy {
    void* to;
    const void* from;
    int bytes, take;
    unsigned group;
};

struct Thread {
    void* sp;
    uint3 tid;
    unsigned lane, warp;
    bool done;
    // Where it waits: resumed once *gate differs from `seen`.
    const unsigned* gate;
    unsigned seen;
    const char* what;
    int line;
    unsigned group, landed;
    std::vector<Copy> copies;
};

struct Barrier {
    unsigned arrived, gen;
    int line;
};

struct Slot {
    unsigned char bytes[64];
};

struct Warp {
    unsigned arrived, gen;
    const char* what;
    Slot slots[2][WARP];
};

static Thread* T;
static void* scheduler;
static Thread threads[MAX_THREADS];
static Warp warps[MAX_THREADS / WARP];
static Barrier barriers[BARRIERS];
static unsigned block_threads;
static unsigned char* dynamic;
static uint3 block_index;
static dim3 grid_dim, block_dim;
static char message[2048];
static bool failed;

/// Ends the grid with a message. Fibers are simply dropped: nothing on their stacks needs unwinding.
[[noreturn]] static __attribute__((noinline)) void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    int n = std::snprintf(message, sizeof message, "block (%u,%u,%u) thread %u: ", block_index.x,
                          block_index.y, block_index.z, T ? T->tid.x : 0);
    std::vsnprintf(message + n, sizeof message - n, format, args);
    va_end(args);
    failed = true;
    void* dropped;
    emu_switch(&dropped, scheduler);
    std::abort();
}

static inline void wait_for(const unsigned* gate, unsigned seen, const char* what, int line) {
    T->gate = gate, T->seen = seen, T->what = what, T->line = line;
    emu_switch(&T->sp, scheduler);
}

/// A barrier of `count` threads. All must come from the same source line.
static __attribute__((noinline)) void barrier(unsigned id, unsigned count, int line) {
    if (id >= BARRIERS || count == 0 || count % WARP || count > block_threads)
        fail("barrier %u of %u threads at line %d", id, count, line);
    Barrier& b = barriers[id];
    if (b.arrived == 0) b.line = line;
    if (b.line != line) fail("barrier %u reached from line %d and line %d", id, b.line, line);
    unsigned gen = b.gen;
    if (++b.arrived == count) {
        b.arrived = 0;
        b.gen++;
    } else {
        wait_for(&b.gen, gen, "barrier", line);
    }
}

/// One warp collective: every lane deposits `in`, waits for the others and sees all 32 deposits. Two sets of
/// slots take turns: a lane that deposits for the next collective has seen all others arrive at this one.
static __attribute__((noinline)) const Slot* collective(const char* what, const void* in, size_t bytes,
                                                        int line) {
    Warp& w = warps[T->warp];
    if (w.arrived == 0) w.what = what;
    if (w.what != what && std::strcmp(w.what, what))
        fail("warp %u diverges: %s at line %d meets %s", T->warp, what, line, w.what);
    unsigned gen = w.gen;
    Slot* slots = w.slots[gen & 1];
    if (bytes) std::memcpy(slots[T->lane].bytes, in, bytes);
    if (++w.arrived == WARP) {
        w.arrived = 0;
        w.gen++;
    } else {
        wait_for(&w.gen, gen, what, line);
    }
    return slots;
}

static inline void full(unsigned mask, const char* what, int line) {
    if (mask != 0xffffffffu)
        fail("%s at line %d with mask %08x: the emulator knows whole warps", what, line, mask);
}

template <class V>
static inline V from_lane(const Slot* slots, unsigned lane) {
    V v;
    std::memcpy(&v, slots[lane].bytes, sizeof v);
    return v;
}

enum class Move { Index, Xor, Down, Up };

template <class V>
static inline V shuffle(Move move, unsigned mask, V value, int by, int width, int line) {
    static_assert(sizeof(V) <= 8, "shuffles move at most 8 bytes");
    full(mask, "shuffle", line);
    const Slot* slots = collective("shuffle", &value, sizeof value, line);
    int lane = T->lane, base = lane & ~(width - 1), last = base + width - 1, from = lane;
    switch (move) {
        case Move::Index:
            from = base + (by & (width - 1));
            break;
        case Move::Xor:
            from = (lane ^ by) > last ? lane : (lane ^ by);
            break;
        case Move::Down:
            from = lane + by > last ? lane : lane + by;
            break;
        case Move::Up:
            from = lane - by < base ? lane : lane - by;
            break;
    }
    return from_lane<V>(slots, from);
}

static inline unsigned ballot(unsigned mask, bool bit, int line) {
    full(mask, "ballot", line);
    unsigned char b = bit;
    const Slot* slots = collective("ballot", &b, 1, line);
    unsigned out = 0;
    for (unsigned l = 0; l < WARP; l++) out |= unsigned(slots[l].bytes[0] & 1) << l;
    return out;
}

template <class V, class F>
static inline V reduce(unsigned mask, V value, int line, F f) {
    full(mask, "reduce", line);
    const Slot* slots = collective("reduce", &value, sizeof value, line);
    V out = from_lane<V>(slots, 0);
    for (unsigned l = 1; l < WARP; l++) out = f(out, from_lane<V>(slots, l));
    return out;
}

template <class V>
static inline unsigned match_any(unsigned mask, V value, int line) {
    full(mask, "match", line);
    const Slot* slots = collective("match", &value, sizeof value, line);
    unsigned out = 0;
    for (unsigned l = 0; l < WARP; l++) out |= unsigned(from_lane<V>(slots, l) == value) << l;
    return out;
}

/// Sum over the block through barrier 0 (two barriers, as `__syncthreads_count` orders both sides).
static inline int sync_count(bool bit, int line) {
    static int total;
    barrier(0, block_threads, line);
    total = 0;
    barrier(0, block_threads, line);
    total += bit;
    barrier(0, block_threads, line);
    int out = total;
    barrier(0, block_threads, line);
    return out;
}

static inline unsigned char* dynamic_shared() { return dynamic; }

static inline void named_barrier(unsigned id, unsigned count, int line = __builtin_LINE()) {
    barrier(id, count, line);
}

}  // namespace emu

#include "warp_ops.hpp"
#include "builtins.hpp"
#include "run.hpp"
