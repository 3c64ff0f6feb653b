// Attention of one row a sequence, over a work list: an item is a run of eight units of 128 tokens, or, where
// runs alone would leave multiprocessors idle, one unit. Both give the same bits (attend.cuh): what one item
// merges in registers the last block of a run merges from memory in the same order. The list follows from the
// positions, in device memory; grid and results do not depend on it.
//
// Where each sequence has one row (EARLY), keys and values before it are from earlier steps and do not depend
// on the kernel before this one, so their copies start before the wait. Defines beside those of attend.cuh:
// EARLY, RESIDENT (blocks a multiprocessor).
#include "attend.cuh"

constexpr u32 PART =
    GROUP * D + 2 * GROUP;  // floats of a partial result: outputs, then (maximum, sum) a head
constexpr u32 PART_STRIDE = (PART + 3) / 4 * 4;
/// Up to so many units the last block of a row merges them all at once.
constexpr u32 FLAT = 32;
constexpr u32 STATS = (2 * GROUP + 3) / 4 * 4;   // a part's maxima and sums
constexpr u32 SLICE = 16 * THREADS + 4 * STATS;  // bytes of a part that a pass of the merge needs
constexpr u32 FIT = STAGES * TILE_BYTES / SLICE, AT_ONCE = FIT < 32 ? FIT : 32;
static_assert(AT_ONCE > 0, "the ring holds a partial result");

struct Partials {
    float *units, *runs;       // [items][PART_STRIDE], [rows][KV_HEADS][max_runs][PART_STRIDE]
    u32 *row_done, *run_done;  // [rows][KV_HEADS], [items]: zero between launches
    u32 max_runs;
};

/// Writes what this block has of the first 16 rows.
DEV void store_partial(const Place& at, const State& s, float* to) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 g = at.lane / 4 + 8 * i;
        if (g >= GROUP) continue;
#pragma unroll
        for (u32 n = 0; n < ON; n++)
            *(float2*)(to + g * D + at.part * COLUMNS + n * 8 + 2 * (at.lane % 4)) =
                make_float2(s.out[n][2 * i], s.out[n][2 * i + 1]);
        if (at.part == 0 && at.lane % 4 == 0)
            *(float2*)(to + GROUP * D + 2 * g) = make_float2(s.most[i], s.sum[i]);
    }
}

/// Four columns of a head's partial results.
struct Quad {
    float most, sum;
    float4 out;
    DEV void merge(const Quad& later) {
        Factors f(most, later.most);
        most = f.most, sum = f.join(sum, later.sum);
        out = make_float4(f.join(out.x, later.out.x), f.join(out.y, later.out.y), f.join(out.z, later.out.z),
                          f.join(out.w, later.out.w));
    }
};

/// Merges four columns of `count` parts, those at `first` + 4 threadIdx.x, in order: first in groups of
/// `step`, then the groups. The ring is free by now: as many slices of parts as it holds arrive in it at
/// once. All threads must call.
DEV Quad fold_parts(const Room& room, const float* parts, u64 stride, u32 count, u32 step, u32 first) {
    u32 column = first + 4 * threadIdx.x, head = column < GROUP * D ? column / D : 0;
    Quad run, total;
    for (u32 base = 0; base < count; base += AT_ONCE) {
        u32 n = min(AT_ONCE, count - base);
        __syncthreads();
        for (u32 i = 0; i < n; i++) {
            const float* part = parts + (base + i) * stride;
            if (column < GROUP * D) cp_async16(room.ring + i * SLICE + 16 * threadIdx.x, part + column);
            if (threadIdx.x < STATS / 4)
                cp_async16(room.ring + i * SLICE + 16 * (THREADS + threadIdx.x),
                           part + GROUP * D + 4 * threadIdx.x);
        }
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        if (column >= GROUP * D) continue;
#pragma unroll 2
        for (u32 i = base; i < base + n; i++) {
            const u8* slice = room.ring + (i - base) * SLICE;
            float2 stats = *(const float2*)(slice + 16 * THREADS + 8 * head);
            Quad part = {stats.x, stats.y, *(const float4*)(slice + 16 * threadIdx.x)};
            if (i % step == 0)
                run = part;
            else
                run.merge(part);
            if (i % step != step - 1 && i + 1 != count) continue;
            if (i < step)
                total = run;
            else
                total.merge(run);
        }
    }
    return total;
}

/// True in the block that arrives last of `count`; it sees what the others wrote, and leaves the counter
/// zero.
DEV bool last_of(u32* counter, u32 count, u32* flag) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // One thread's fence covers what the barrier has ordered before it.
        __threadfence();
        bool last = atomicAdd(counter, 1u) + 1 == count;
        if (last) *counter = 0;
        *flag = last;
        __threadfence();
    }
    __syncthreads();
    return *flag;
}

/// Merges parts (units by runs of eight, or runs) and stores the row's heads.
DEV void merge_row(const Room& room, const float* parts, u64 stride, u32 count, u32 step, void* out,
                   const float* gate, u32 row, u32 head) {
#pragma unroll 1
    for (u32 first = 0; first < GROUP * D; first += 4 * THREADS) {
        Quad total = fold_parts(room, parts, stride, count, step, first);
        u32 column = first + 4 * threadIdx.x, g = column / D, c = column % D;
        if (column >= GROUP * D) break;
        float4 y = total.out;
        put2(out, gate, row, head * GROUP + g, c, y.x / total.sum, y.y / total.sum);
        put2(out, gate, row, head * GROUP + g, c + 2, y.z / total.sum, y.w / total.sum);
    }
}

/// Merges the units of a run into a partial result of the run.
DEV void merge_run(const Room& room, const float* parts, u64 stride, u32 count, float* to) {
#pragma unroll 1
    for (u32 first = 0; first < GROUP * D; first += 4 * THREADS) {
        Quad total = fold_parts(room, parts, stride, count, RUN, first);
        u32 column = first + 4 * threadIdx.x;
        if (column >= GROUP * D) break;
        st_f4(to + column, total.out);
        if (column % D == 0)
            *(float2*)(to + GROUP * D + 2 * (column / D)) = make_float2(total.most, total.sum);
    }
}

DEV u32 units_of(u32 tokens) { return (tokens + UNIT - 1) / UNIT; }
DEV u32 runs_of(u32 tokens) { return (tokens + UNIT * RUN - 1) / (UNIT * RUN); }

/// Fills `starts[0 ..= rows]` with the first item of each row and says whether items are runs.
DEV bool list_items(const u32* pos, u32 rows, u32 coarse_from, u32* starts, u32* sums) {
    u32 per = (rows + THREADS - 1) / THREADS, first = min(rows, threadIdx.x * per),
        end = min(rows, first + per);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = 0, runs = 0;
    for (u32 r = first; r < end; r++) units += units_of(pos[r] + 1), runs += runs_of(pos[r] + 1);
    u32 all_runs = __reduce_add_sync(0xffffffffu, runs);
    if (lane == 0) sums[warp] = all_runs;
    __syncthreads();
    all_runs = 0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) all_runs += sums[w];
    bool coarse = all_runs * KV_HEADS >= coarse_from;
    u32 mine = coarse ? runs : units, upto = mine;
#pragma unroll
    for (int by = 1; by < 32; by <<= 1) {
        u32 other = __shfl_up_sync(0xffffffffu, upto, by);
        if (int(lane) >= by) upto += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    u32 at = upto - mine;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) at += w < warp ? sums[w] : 0;
    for (u32 r = first; r < end; r++) {
        starts[r] = at;
        at += coarse ? runs_of(pos[r] + 1) : units_of(pos[r] + 1);
        if (r + 1 == rows) starts[rows] = at;
    }
    __syncthreads();
    return coarse;
}

/// The row that item `j` belongs to: the last whose start is not above it.
DEV u32 row_of(const u32* starts, u32 rows, u32 j) {
    u32 low = 0, high = rows;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (starts[middle] <= j)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/// Publishes an item's result; the block that completes a run or a row merges it.
DEV void publish(const Room& room, const Partials& p, const Place& at, const State& s, bool coarse, u32 item,
                 u32 row, u32 head, u32 index, u32 length, void* out, const float* gate, u32* flag) {
    u32 units = units_of(length), runs = runs_of(length), row_head = row * KV_HEADS + head;
    if ((coarse ? runs : units) == 1) return finish(at, s, out, gate, row, 1, head);
    float* row_runs = p.runs + u64(row_head) * p.max_runs * PART_STRIDE;
    if (coarse) {
        store_partial(at, s, row_runs + u64(index) * PART_STRIDE);
    } else {
        u64 stride = u64(KV_HEADS) * PART_STRIDE;
        float* mine = p.units + u64(item) * PART_STRIDE;
        store_partial(at, s, mine);
        if (units <= FLAT) {
            if (!last_of(p.row_done + row_head, units, flag)) return;
            return merge_row(room, mine - u64(index) * stride, stride, units, RUN, out, gate, row, head);
        }
        u32 run = index / RUN, in_run = min(RUN, units - run * RUN);
        if (!last_of(p.run_done + item - index % RUN * KV_HEADS, in_run, flag)) return;
        merge_run(room, mine - u64(index % RUN) * stride, stride, in_run, row_runs + u64(run) * PART_STRIDE);
    }
    if (!last_of(p.row_done + row_head, runs, flag)) return;
    merge_row(room, row_runs, PART_STRIDE, runs, runs, out, gate, row, head);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    attend_decode(const float* q, const float* gate,
                  const u16* k_cache, const u16* v_cache,
                  const u32* pos, const u32* seg, const u32* table,
                  void* out, float* unit_parts, float* run_parts, u32* row_done, u32* run_done,
                  const Shape* shape, float scale, u32 max_pages, u32 max_runs,
                  u32 coarse_from) {
    SPARK_DYNAMIC_SHARED(base);
    __shared__ u32 sums[WARPS];
    __shared__ u32 flag;
    pdl_launch();
    Room room(base);
    Place at;
    Partials p = {unit_parts, run_parts, row_done, run_done, max_runs};
    u32 rows = shape->rows;
    bool coarse = list_items(pos, rows, coarse_from, room.rest, sums), waited = !EARLY;
    if (waited) pdl_wait();
    u32 items = rows ? room.rest[rows] * KV_HEADS : 0;
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        u32 j = item / KV_HEADS, head = item % KV_HEADS, row = row_of(room.rest, rows, j),
            index = j - room.rest[row];
        u32 length = pos[row] + 1, first = coarse ? index * RUN : index;
        u32 end = min(units_of(length), coarse ? first + RUN : first + 1);
        Stream stream;
        stream.start(k_cache, v_cache, table + u64(seg[row]) * max_pages, head, length, first, end);
        // The last token's key and value come from the kernel before this one, all others from earlier steps.
        for (u32 i = 0; i + 1 < STAGES; i++) {
            if (!waited && stream.live && stream.next_end() >= length) pdl_wait(), waited = true;
            stream.issue(room);
        }
        if (!waited) pdl_wait(), waited = true;
        load_queries(room, q, row, 1, head);
        u32 limit[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) limit[i] = at.lane / 4 + 8 * i < GROUP ? length : 0;
        State run;
        run.clear();
        for (u32 u = first; u < end; u++) {
            State unit;
            attend_unit(room, at, stream, u, limit, scale, unit);
            merge(run, unit);
        }
        publish(room, p, at, run, coarse, item, row, head, index, length, out, gate, &flag);
        __syncthreads();
    }
    if (!waited) pdl_wait();
}
