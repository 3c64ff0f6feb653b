// Argmax of each row of logits in one node: blocks scan pieces of a row, meet in one 64-bit maximum (value
// first, then the lower index; the order of blocks cannot show), and the last block of a row publishes it and
// leaves maximum and counter zero for the next launch.
//
// A row with a value that is not finite is chosen 0xffffffff, which is no token: its reader must refuse it.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 NOT_FINITE = 0xffffffffu;

DEV u64 better(u64 a, u64 b) { return a > b ? a : b; }

/// Larger values are larger; of equal values the lower index is larger. Never 0.
DEV u64 candidate(float x, u32 index) {
    return u64(finite(x) ? ordered_key(x) : NOT_FINITE) << 32 | (0xffffffffu - index);
}

DEV u64 warp_best(u64 best) {
#pragma unroll
    for (int half = 16; half > 0; half >>= 1) best = better(best, __shfl_xor_sync(0xffffffffu, best, half));
    return best;
}

/// `best` and `arrived` hold one value a row, zero between launches. `piece` is a multiple of 4.
extern "C" __global__ void __launch_bounds__(256)
    argmax_rows(const float* logits, u32* chosen, u64* best, u32* arrived,
                const Shape* shape, u32 vocab, u32 piece) {
    __shared__ u64 part[8];
    pdl_launch();
    u32 row = blockIdx.y, rows = shape->out_rows, first = blockIdx.x * piece, end = min(vocab, first + piece);
    pdl_wait();
    if (row >= rows) return;
    const float* x = logits + u64(row) * vocab;
    u64 mine = 0;
    if (vocab % 4 == 0) {
#pragma unroll 4
        for (u32 i = first + 4 * threadIdx.x; i < end; i += 1024) {
            float4 v = ld_f4(x + i);
            mine = better(mine, better(better(candidate(v.x, i), candidate(v.y, i + 1)),
                                       better(candidate(v.z, i + 2), candidate(v.w, i + 3))));
        }
    } else {
        for (u32 i = first + threadIdx.x; i < end; i += 256) mine = better(mine, candidate(x[i], i));
    }
    mine = warp_best(mine);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 w = 1; w < 8; w++) mine = better(mine, part[w]);
    if (gridDim.x > 1) {
        atomicMax(best + row, mine);
        __threadfence();
        if (atomicAdd(arrived + row, 1u) + 1 != gridDim.x) return;
        __threadfence();
        mine = atomicExch(best + row, 0ull);
        arrived[row] = 0;
    }
    chosen[row] = u32(mine >> 32) == NOT_FINITE ? NOT_FINITE : 0xffffffffu - u32(mine);
}
