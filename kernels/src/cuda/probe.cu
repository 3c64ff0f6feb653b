// Ceilings: what the memory of this device can do for reads, copies, in-place updates and a plain matrix-vector
// product. Each kernel passes `passes` times over its working set, so that a small set is timed long enough.
#include "common.cuh"

/// 16-byte words in flight for each thread.
constexpr u32 FLIGHT = 8;

DEV u32 folded(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

/// Reads every word. The sum is stored only where it has a value that it cannot have by design of the caller.
extern "C" __global__ void __launch_bounds__(512)
probe_read(const uint4* data, u64 words, u32 passes, u32* sink) {
    u64 step = u64(gridDim.x) * blockDim.x * FLIGHT;
    u64 first = u64(blockIdx.x) * blockDim.x * FLIGHT + threadIdx.x;
    u32 sum = 0;
    for (u32 p = 0; p < passes; p++) {
        for (u64 i = first; i < words; i += step) {
            uint4 v[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                u64 at = i + u64(j) * blockDim.x;
                v[j] = at < words ? ld16_stream(data + at) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) sum ^= folded(v[j]);
        }
    }
    if (sum == 0x5eed1234u) *sink = sum;
}

/// Copies the first half of the set to the second.
extern "C" __global__ void __launch_bounds__(512)
probe_copy(uint4* data, u64 words, u32 passes, u32*) {
    u64 half = words / 2, step = u64(gridDim.x) * blockDim.x * FLIGHT;
    u64 first = u64(blockIdx.x) * blockDim.x * FLIGHT + threadIdx.x;
    for (u32 p = 0; p < passes; p++) {
        for (u64 i = first; i < half; i += step) {
            uint4 v[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                u64 at = i + u64(j) * blockDim.x;
                if (at < half) v[j] = ld16_stream(data + at);
            }
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                u64 at = i + u64(j) * blockDim.x;
                if (at < half) st16(data + half + at, v[j]);
            }
        }
    }
}

/// Adds one to every word, in place.
extern "C" __global__ void __launch_bounds__(512)
probe_update(uint4* data, u64 words, u32 passes, u32*) {
    u64 step = u64(gridDim.x) * blockDim.x * FLIGHT;
    u64 first = u64(blockIdx.x) * blockDim.x * FLIGHT + threadIdx.x;
    for (u32 p = 0; p < passes; p++) {
        for (u64 i = first; i < words; i += step) {
            uint4 v[FLIGHT];
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                u64 at = i + u64(j) * blockDim.x;
                if (at < words) v[j] = ld16(data + at);
            }
#pragma unroll
            for (u32 j = 0; j < FLIGHT; j++) {
                u64 at = i + u64(j) * blockDim.x;
                v[j].x++, v[j].y++, v[j].z++, v[j].w++;
                if (at < words) st16(data + at, v[j]);
            }
        }
    }
}

/// A bf16 matrix of rows of 640 words (5120 values) times a vector of ones: a warp a row, twenty words a lane.
extern "C" __global__ void __launch_bounds__(512)
probe_gemv(const uint4* data, u64 words, u32 passes, u32* sink) {
    constexpr u32 ROW = 640;
    u32 lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
    u32 warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    u64 rows = words / ROW;
    for (u32 p = 0; p < passes; p++) {
        for (u64 r = warp; r < rows; r += warps) {
            const uint4* row = data + r * ROW + lane;
            float sum = 0.f;
#pragma unroll
            for (u32 c = 0; c < ROW; c += 32 * 10) {
                uint4 v[10];
#pragma unroll
                for (u32 j = 0; j < 10; j++) v[j] = ld16_stream(row + c + 32 * j);
#pragma unroll
                for (u32 j = 0; j < 10; j++) {
                    sum += bf16_lo(v[j].x) + bf16_hi(v[j].x) + bf16_lo(v[j].y) + bf16_hi(v[j].y);
                    sum += bf16_lo(v[j].z) + bf16_hi(v[j].z) + bf16_lo(v[j].w) + bf16_hi(v[j].w);
                }
            }
            sum = warp_sum(sum);
            if (lane == 0 && sum == 12345.678f) *sink = u32(r);
        }
    }
}
