// Attention of many rows: a block takes M / GROUP rows of one sequence and one key head through all their
// tokens. Long rows come first in the grid, so that the short ones fill its end.
#include "attend.cuh"

constexpr u32 ROWS = M / GROUP;

extern "C" __global__ void __launch_bounds__(THREADS)
    attend_prefill(const float* q, const float* gate,
                   const u16* k_cache, const u16* v_cache,
                   const u32* pos, const u32* seg, const u32* table,
                   void* out, const Shape* shape, float scale, u32 max_pages) {
    SPARK_DYNAMIC_SHARED(base);
    pdl_launch();
    Room room(base);
    Place at;
    u32 rows = shape->rows, head = blockIdx.x % KV_HEADS,
        tile = gridDim.x / KV_HEADS - 1 - blockIdx.x / KV_HEADS;
    u32 row = tile * ROWS, end = min(rows, row + ROWS);
    pdl_wait();
    while (row < end) {
        u32 sequence = seg[row], n = 1;
        while (row + n < end && seg[row + n] == sequence) n++;
        u32 limit[2], length = pos[row + n - 1] + 1, units = (length + UNIT - 1) / UNIT;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 m = at.row + at.lane / 4 + 8 * i;
            limit[i] = m < n * GROUP ? pos[row + m / GROUP] + 1 : 0;
        }
        __syncthreads();
        load_queries(room, q, row, n, head);
        Stream stream;
        stream.start(k_cache, v_cache, table + u64(sequence) * max_pages, head, length, 0, units);
        for (u32 i = 0; i + 1 < STAGES; i++) stream.issue(room);
        State total, run;
        total.clear(), run.clear();
        for (u32 u = 0; u < units; u++) {
            State unit;
            attend_unit(room, at, stream, u, limit, scale, unit);
            merge(run, unit);
            if (u % RUN == RUN - 1 || u + 1 == units) merge(total, run), run.clear();
        }
        finish(at, total, out, gate, row, n, head);
        row += n;
    }
}
