// What the engine does beside a plan's kernels: moving ranges of the cache, looking for poison, doing nothing.
#include "common.cuh"

/// A range of 16-byte words to copy inside one buffer.
struct Move {
    u64 from, to, words;
};

/// Copies ranges: one block a range at a time, all of them over the grid.
extern "C" __global__ void __launch_bounds__(256) copy_ranges(uint4* base, const Move* moves, u32 count) {
    for (u32 i = blockIdx.x; i < count; i += gridDim.x) {
        Move m = moves[i];
        for (u64 w = threadIdx.x; w < m.words; w += blockDim.x) base[m.to + w] = base[m.from + w];
    }
}

/// Adds to `*found` the 4-byte words of `words` that are not `pattern`.
extern "C" __global__ void __launch_bounds__(256)
count_other(const u32* words, u64 count, u32 pattern, u32* found) {
    u32 other = 0;
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) other += words[i] != pattern;
    if (other) atomicAdd(found, other);
}

/// A launch without work.
extern "C" __global__ void __launch_bounds__(32) empty() {}
