// The scheduler and the entry point that a test calls.
#pragma once

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.hidden emu_switch
.globl emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
)");
#else
#error "the emulator switches fibers by hand on x86-64 only"
#endif

namespace emu {

constexpr size_t STACK = 128 << 10, GUARD = 4096;
static unsigned char* stacks;

/// A kernel's arguments by register class. In the System V convention integers and pointers fill six
/// registers in order and then the stack, floats fill eight vector registers: one signature serves every
/// kernel of at most 8 floats.
struct Call {
    void* entry;
    uint64_t ints[40];
    float floats[8];
};
static Call call;

static void enter() {
    using Fn =
        void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, float, float, float, float,
                 float, float, float, float, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                 uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
    const uint64_t* i = call.ints;
    const float* f = call.floats;
    reinterpret_cast<Fn>(call.entry)(i[0], i[1], i[2], i[3], i[4], i[5], f[0], f[1], f[2], f[3], f[4], f[5],
                                     f[6], f[7], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14],
                                     i[15], i[16], i[17], i[18], i[19], i[20], i[21], i[22], i[23], i[24],
                                     i[25], i[26], i[27], i[28], i[29]);
    T->done = true;
    void* dropped;
    emu_switch(&dropped, scheduler);
    std::abort();
}

static uint64_t mix(uint64_t& s) {
    uint64_t z = (s += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/// 0..n in order for seed 0, shuffled for any other.
static std::vector<unsigned> order(unsigned n, uint64_t& seed) {
    std::vector<unsigned> out(n);
    for (unsigned i = 0; i < n; i++) out[i] = i;
    if (seed)
        for (unsigned i = n; i > 1; i--) std::swap(out[i - 1], out[mix(seed) % i]);
    return out;
}

static void stuck() {
    T = nullptr;
    int n = std::snprintf(message, sizeof message, "block (%u,%u,%u) is stuck:", block_index.x, block_index.y,
                          block_index.z);
    unsigned ended = 0, shown = 0;
    for (unsigned i = 0; i < block_threads; i++) ended += threads[i].done;
    n += std::snprintf(message + n, sizeof message - n, " %u threads ended;", ended);
    for (unsigned i = 0; i < block_threads && shown < 12; i++) {
        Thread& t = threads[i];
        bool like_the_last = i && threads[i - 1].line == t.line && threads[i - 1].done == t.done;
        if (t.done || like_the_last) continue;
        n += std::snprintf(message + n, sizeof message - n, " thread %u waits in %s at line %d;", i, t.what,
                           t.line);
        shown++;
    }
    failed = true;
}

static void start_block(unsigned shared) {
    size_t section = __start_emu_shared ? size_t(__stop_emu_shared - __start_emu_shared) : 0;
    if (section) std::memset(__start_emu_shared, POISON, section);
    std::memset(dynamic - GUARD, POISON, shared + 2 * GUARD);
    std::memset(barriers, 0, sizeof barriers);
    for (unsigned w = 0; w < (block_threads + WARP - 1) / WARP; w++) warps[w].arrived = warps[w].gen = 0;
    for (unsigned i = 0; i < block_threads; i++) {
        Thread& t = threads[i];
        unsigned char* top = stacks + STACK * (i + 1) - 64;
        void** frame = reinterpret_cast<void**>(top - 64);
        for (int k = 0; k < 6; k++) frame[k] = nullptr;
        frame[6] = reinterpret_cast<void*>(&enter);
        stacks[STACK * i] = POISON;
        t.sp = frame, t.done = false, t.gate = nullptr, t.line = 0, t.what = "start";
        t.tid = {i % block_dim.x, i / block_dim.x % block_dim.y, i / block_dim.x / block_dim.y};
        t.lane = i % WARP, t.warp = i / WARP, t.group = 0;
        t.copies.clear();
    }
}

static void run_block(unsigned shared, uint64_t& seed) {
    start_block(shared);
    std::vector<unsigned> turn = order(block_threads, seed);
    unsigned left = block_threads;
    while (left && !failed) {
        bool moved = false;
        for (unsigned i : turn) {
            Thread& t = threads[i];
            if (t.done || (t.gate && *t.gate == t.seen)) continue;
            t.gate = nullptr;
            T = &t;
            moved = true;
            emu_switch(&scheduler, t.sp);
            if (failed) return;
            left -= t.done;
        }
        if (!moved) return stuck();
    }
    for (size_t i = 0; i < GUARD; i++)
        if (dynamic[-1 - long(i)] != POISON || dynamic[shared + i] != POISON) {
            std::snprintf(message, sizeof message,
                          "block (%u,%u,%u) wrote %ld bytes beyond its %u bytes of shared memory",
                          block_index.x, block_index.y, block_index.z, long(i), shared);
            failed = true;
            return;
        }
}

}  // namespace emu

/// Runs a grid. `ints` and `floats` are the kernel's arguments by class, each in order. Returns 0, or 1 with
/// a message.
extern "C" __attribute__((visibility("default"))) int emu_run(void* entry, const uint32_t* grid,
                                                              uint32_t block, uint32_t shared,
                                                              const uint64_t* ints, uint32_t nints,
                                                              const float* floats, uint32_t nfloats,
                                                              uint64_t seed, char* message, uint32_t length) {
    using namespace emu;
    failed = false;
    T = nullptr;
    if (nints > 30 || nfloats > 8 || block == 0 || block > MAX_THREADS || block % WARP) {
        std::snprintf(message, length, "%u integer and %u float arguments, block of %u", nints, nfloats,
                      block);
        return 1;
    }
    call = {};
    call.entry = entry;
    std::memcpy(call.ints, ints, 8 * nints);
    std::memcpy(call.floats, floats, 4 * nfloats);
    if (!stacks) stacks = static_cast<unsigned char*>(std::aligned_alloc(4096, STACK * MAX_THREADS));
    unsigned char* arena =
        static_cast<unsigned char*>(std::aligned_alloc(4096, (shared + 3 * GUARD) / GUARD * GUARD + GUARD));
    dynamic = arena + GUARD;
    grid_dim = dim3(grid[0], grid[1], grid[2]);
    block_dim = dim3(block);
    block_threads = block;
    for (unsigned b : order(grid[0] * grid[1] * grid[2], seed)) {
        block_index = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
        run_block(shared, seed);
        if (failed) break;
    }
    std::free(arena);
    if (failed) std::snprintf(message, length, "%s", emu::message);
    return failed;
}
