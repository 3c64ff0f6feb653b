// Routing in one node: one warp a row takes the top k by two warp reductions a slot (value, then the lower
// index), and the last block to arrive groups all (row, slot) pairs by expert with a stable counting sort: a
// warp owns a run of pairs, so ranks come from warp votes and nothing depends on which block sorts.
//
// A row with a logit that is not finite gets NaN weights, so that it shows; its ids stay valid.
// Defines: EXPERTS, TOP_K (at most 32 and EXPERTS), WARPS, NORM_TOPK.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 PER = (EXPERTS + 31) / 32, ALL = 0xffffffffu;

DEV void route_row(const float* logits, u32* ids, float* weights) {
    u32 lane = threadIdx.x % 32;
    u32 key[PER];
    float x[PER];
    bool bad = false;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 e = lane + 32 * i;
        x[i] = e < EXPERTS ? logits[e] : 0.0f;
        bad |= !finite(x[i]);
        // 0 is "taken or absent"; a NaN may land anywhere above it.
        key[i] = e < EXPERTS ? max(ordered_key(x[i]), 1u) : 0;
    }
    bad = __any_sync(ALL, bad);
    float top = 0, total = 0, mine = 0;
    u32 my_id = 0;
#pragma unroll
    for (u32 slot = 0; slot < TOP_K; slot++) {
        u32 best = key[0], at = 0;
#pragma unroll
        for (u32 i = 1; i < PER; i++)
            if (key[i] > best) best = key[i], at = i;
        u32 most = __reduce_max_sync(ALL, best);
        u32 id = __reduce_min_sync(ALL, best == most ? lane + 32 * at : ALL);
#pragma unroll
        for (u32 i = 0; i < PER; i++)
            if (id == lane + 32 * i) key[i] = 0;
        float value = ordered_value(most);
        if (slot == 0) top = value;
        float w = expf(value - top);
        total += w;
        if (lane == slot) my_id = id, mine = w;
    }
    if (!NORM_TOPK) {
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < PER; i++) sum += lane + 32 * i < EXPERTS ? expf(x[i] - top) : 0.0f;
        total = warp_sum(sum);
    }
    if (lane < TOP_K) {
        ids[lane] = my_id;
        weights[lane] = bad ? __uint_as_float(0x7fffffffu) : mine / total;
    }
}

/// Exclusive prefix sums of `count` over the experts by one warp.
DEV void offsets_of(const u32* count, u32* offset, u32* out) {
    u32 lane = threadIdx.x % 32, sum = 0;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 e = lane * PER + i;
        sum += e < EXPERTS ? count[e] : 0;
    }
    u32 upto = sum;
#pragma unroll
    for (int by = 1; by < 32; by <<= 1) {
        u32 other = __shfl_up_sync(ALL, upto, by);
        if (int(lane) >= by) upto += other;
    }
    u32 at = upto - sum;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
        u32 e = lane * PER + i;
        if (e >= EXPERTS) break;
        offset[e] = out[e] = at;
        at += count[e];
    }
    if (lane == 31) out[EXPERTS] = upto;
}

/// Stable counting sort of the pairs by their expert. `seen` is [WARPS][EXPERTS], `count` and `offset`
/// [EXPERTS].
DEV void group(const u32* ids, u32 pairs, u32* seen, u32* count, u32* offset, u32* counts, u32* offsets,
               u32* list) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 run = ((pairs + WARPS - 1) / WARPS + 31) & ~31u, first = warp * run, end = min(pairs, first + run);
    u32* mine = seen + warp * EXPERTS;
    for (u32 e = lane; e < EXPERTS; e += 32) mine[e] = 0;
    __syncwarp();
    for (u32 p = first; p < end; p += 32) {
        u32 id = p + lane < end ? __ldcg(ids + p + lane) : ALL;
        u32 alike = __match_any_sync(ALL, id);
        if (id != ALL && lane == u32(__ffs(alike)) - 1) mine[id] += __popc(alike);
        __syncwarp();
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < EXPERTS; e += 32 * WARPS) {
        u32 sum = 0;
        for (u32 w = 0; w < WARPS; w++) {
            u32 n = seen[w * EXPERTS + e];
            seen[w * EXPERTS + e] = sum;
            sum += n;
        }
        count[e] = counts[e] = sum;
    }
    __syncthreads();
    if (warp == 0) offsets_of(count, offset, offsets);
    __syncthreads();
    for (u32 p = first; p < end; p += 32) {
        u32 id = p + lane < end ? __ldcg(ids + p + lane) : ALL;
        u32 alike = __match_any_sync(ALL, id);
        u32 before = __popc(alike & ((1u << lane) - 1));
        if (id != ALL) list[offset[id] + mine[id] + before] = p + lane;
        __syncwarp();
        if (id != ALL && before == 0) mine[id] += __popc(alike);
        __syncwarp();
    }
}

/// The same for at most 32 pairs, by counting how many come before: no scan. `chosen` holds 32 words.
DEV void group_few(const u32* ids, u32 pairs, u32* chosen, u32* counts, u32* offsets, u32* list) {
    if (threadIdx.x < pairs) chosen[threadIdx.x] = __ldcg(ids + threadIdx.x);
    __syncthreads();
    for (u32 e = threadIdx.x; e <= EXPERTS; e += 32 * WARPS) {
        u32 below = 0, same = 0;
        for (u32 p = 0; p < pairs; p++) below += chosen[p] < e, same += chosen[p] == e;
        offsets[e] = below;
        if (e < EXPERTS) counts[e] = same;
    }
    if (threadIdx.x >= pairs) return;
    u32 id = chosen[threadIdx.x], before = 0;
    for (u32 p = 0; p < pairs; p++) before += chosen[p] < id || (chosen[p] == id && p < threadIdx.x);
    list[before] = threadIdx.x;
}

/// `arrived` is one counter, zero between launches.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    route_rows(const float* logits, u32* ids, float* weights,
               u32* counts, u32* offsets, u32* list, u32* arrived,
               const Shape* shape) {
    __shared__ u32 seen[WARPS * EXPERTS];
    __shared__ u32 count[EXPERTS < 32 ? 32 : EXPERTS];
    __shared__ u32 offset[EXPERTS];
    __shared__ u32 last;
    pdl_launch();
    u32 row = blockIdx.x * WARPS + threadIdx.x / 32, rows = shape->rows;
    pdl_wait();
    if (row < rows) route_row(logits + u64(row) * EXPERTS, ids + row * TOP_K, weights + row * TOP_K);
    __syncthreads();
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            // One thread's fence covers what the barrier has ordered before it.
            __threadfence();
            last = atomicAdd(arrived, 1u) + 1 == gridDim.x;
            if (last) *arrived = 0;
            __threadfence();
        }
        __syncthreads();
        if (!last) return;
    }
    if (rows * TOP_K <= 32) return group_few(ids, rows * TOP_K, count, counts, offsets, list);
    group(ids, rows * TOP_K, seen, count, offset, counts, offsets, list);
}
