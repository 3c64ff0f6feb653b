// The chunked delta rule for prefill, f32 throughout. Columns of the state are independent given q, k and the
// decays, so a block takes 32 columns of one value head of one sequence and walks the tokens 32 at a time:
//   v'_i = beta_i (v_i - e^{G_i} S^T k_i) - sum_{j<i} beta_i (k_i . k_j) e^{G_i - G_j} v'_j,
//   y_i = e^{G_i} S^T q_i + sum_{j<=i} (q_i . k_j) e^{G_i - G_j} v'_j,
//   S <- e^{G_last} S + sum_i e^{G_last - G_i} k_i v'_i^T,
// with G the running sum of the log decays; only differences that are never positive are exponentiated. The
// norm of an output row needs all its columns: the block that finishes a chunk's rows last norms them.
//
// Defines: K_HEADS, V_HEADS, DK (a multiple of 32), DV (a multiple of 32), A_FORMAT, DT_FORMAT, N_FORMAT.
#include "common.cuh"
#include "rowops.cuh"

constexpr u32 CHUNK = 32, COLUMNS = 32, THREADS = 256, SLICES = DV / COLUMNS;
constexpr u32 KEYS = K_HEADS * DK, WIDTH = 2 * KEYS + V_HEADS * DV, VALUES = V_HEADS * DV;
constexpr u32 KS = DK + 4, VS = COLUMNS + 4;  // row strides: neighbouring rows in different banks

/// The block's dynamic shared memory; `delta/cuda.rs` computes the same size.
struct Room {
    float *q, *k;     // [CHUNK][KS] unit length, q scaled
    float* s;         // [DK][COLUMNS]
    float* v;         // [CHUNK][VS] v'
    float* past;      // [j][VS]: beta_i (k_i . k_j) e^{G_i - G_j} at [j][i], j < i
    float* mix;       // [i][VS]: (q_i . k_j) e^{G_i - G_j} at [i][j], j <= i
    float *g, *beta;  // [CHUNK]
    DEV Room(u8* base) {
        q = (float*)base;
        k = q + CHUNK * KS, s = k + CHUNK * KS, v = s + DK * COLUMNS;
        past = v + CHUNK * VS, mix = past + CHUNK * VS, g = mix + CHUNK * VS, beta = g + CHUNK;
    }
};

DEV float4 get4(const float* p) { return *(const float4*)p; }
DEV float4 fma4(float s, float4 a, float4 b) {
    return make_float4(fmaf(s, a.x, b.x), fmaf(s, a.y, b.y), fmaf(s, a.z, b.z), fmaf(s, a.w, b.w));
}
DEV float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// Unit q and k of `n` tokens from `first_row`; zeros beyond them, so that they add nothing.
DEV void load_units(const Room& room, const float* qkv, u32 first_row, u32 n, u32 key_head) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < CHUNK; i += THREADS / 32) {
        const float* q = qkv + u64(first_row + (i < n ? i : 0)) * WIDTH + key_head * DK;
        float x[DK / 32], y[DK / 32], qq = 0, kk = 0;
#pragma unroll
        for (u32 j = 0; j < DK / 32; j++) {
            x[j] = i < n ? q[lane + 32 * j] : 0.0f, y[j] = i < n ? q[KEYS + lane + 32 * j] : 0.0f;
            qq = fmaf(x[j], x[j], qq), kk = fmaf(y[j], y[j], kk);
        }
        float q_unit = 1.0f / (sqrtf(warp_sum(qq) + 1e-6f) * sqrtf(float(DK))),
              k_unit = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
#pragma unroll
        for (u32 j = 0; j < DK / 32; j++) {
            room.q[i * KS + lane + 32 * j] = x[j] * q_unit;
            room.k[i * KS + lane + 32 * j] = y[j] * k_unit;
        }
    }
}

/// Running log decays and write strengths, one token a lane of the first warp.
DEV void load_gates(const Room& room, const float* a, const float* b, u32 first_row, u32 n, u32 h, float rate,
                    float bias) {
    u32 i = threadIdx.x;
    if (i >= CHUNK) return;
    u32 at = (first_row + (i < n ? i : 0)) * V_HEADS + h;
    float sum = i < n ? rate * softplus(a[at] + bias) : 0.0f;
    room.beta[i] = i < n ? sigmoid(b[at]) : 0.0f;
#pragma unroll
    for (int by = 1; by < 32; by <<= 1) {
        float other = __shfl_up_sync(0xffffffffu, sum, by);
        if (int(i) >= by) sum += other;
    }
    room.g[i] = sum;
}

/// Both triangles of products of the chunk's tokens, decayed.
DEV void products(const Room& room) {
    u32 i = threadIdx.x / 8, j0 = threadIdx.x % 8;
    float kk[4] = {0, 0, 0, 0}, qk[4] = {0, 0, 0, 0};
#pragma unroll 2
    for (u32 r = 0; r < DK; r += 4) {
        float4 k = get4(room.k + i * KS + r), q = get4(room.q + i * KS + r);
#pragma unroll
        for (u32 m = 0; m < 4; m++) {
            float4 other = get4(room.k + (j0 + 8 * m) * KS + r);
            kk[m] = dot4(k, other, kk[m]), qk[m] = dot4(q, other, qk[m]);
        }
    }
#pragma unroll
    for (u32 m = 0; m < 4; m++) {
        u32 j = j0 + 8 * m;
        float decay = j <= i ? expf(room.g[i] - room.g[j]) : 0.0f;
        room.past[j * VS + i] = j < i ? room.beta[i] * kk[m] * decay : 0.0f;
        room.mix[i * VS + j] = j <= i ? qk[m] * decay : 0.0f;
    }
}

/// S^T k and S^T q of token `i` for four columns.
DEV void through_state(const Room& room, u32 i, u32 c, float4& with_k, float4& with_q) {
    with_k = with_q = make_float4(0, 0, 0, 0);
#pragma unroll 2
    for (u32 r = 0; r < DK; r += 4) {
        float4 k = get4(room.k + i * KS + r), q = get4(room.q + i * KS + r);
        float4 s0 = get4(room.s + r * COLUMNS + c), s1 = get4(room.s + (r + 1) * COLUMNS + c);
        float4 s2 = get4(room.s + (r + 2) * COLUMNS + c), s3 = get4(room.s + (r + 3) * COLUMNS + c);
        with_k = fma4(k.w, s3, fma4(k.z, s2, fma4(k.y, s1, fma4(k.x, s0, with_k))));
        with_q = fma4(q.w, s3, fma4(q.z, s2, fma4(q.y, s1, fma4(q.x, s0, with_q))));
    }
}

/// Forward substitution: one column a lane of the first warp, the column in registers.
DEV void solve(const Room& room) {
    if (threadIdx.x >= 32) return;
    float v[CHUNK];
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) v[i] = room.v[i * VS + threadIdx.x];
#pragma unroll
    for (u32 j = 0; j + 1 < CHUNK; j++) {
#pragma unroll
        for (u32 i = (j + 1) / 4 * 4; i < CHUNK; i += 4) {
            float4 f = get4(room.past + j * VS + i);
            // Nothing flows back in time, not even a NaN times zero.
            if (i > j) v[i] = fmaf(-f.x, v[j], v[i]);
            if (i + 1 > j) v[i + 1] = fmaf(-f.y, v[j], v[i + 1]);
            if (i + 2 > j) v[i + 2] = fmaf(-f.z, v[j], v[i + 2]);
            if (i + 3 > j) v[i + 3] = fmaf(-f.w, v[j], v[i + 3]);
        }
    }
#pragma unroll
    for (u32 i = 0; i < CHUNK; i++) room.v[i * VS + threadIdx.x] = v[i];
}

/// y += sum over the tokens up to `i`, four columns. The four tokens of a warp share their last group of
/// four.
DEV void add_earlier(const Room& room, u32 i, u32 c, float4& y) {
    u32 whole = i & ~3u;
    float4 m = get4(room.mix + i * VS + whole);
#pragma unroll 2
    for (u32 j = 0; j < whole; j += 4) {
        float4 f = get4(room.mix + i * VS + j);
        y = fma4(f.x, get4(room.v + j * VS + c), y), y = fma4(f.y, get4(room.v + (j + 1) * VS + c), y);
        y = fma4(f.z, get4(room.v + (j + 2) * VS + c), y), y = fma4(f.w, get4(room.v + (j + 3) * VS + c), y);
    }
    y = fma4(m.x, get4(room.v + whole * VS + c), y);
    if (whole + 1 <= i) y = fma4(m.y, get4(room.v + (whole + 1) * VS + c), y);
    if (whole + 2 <= i) y = fma4(m.z, get4(room.v + (whole + 2) * VS + c), y);
    if (whole + 3 <= i) y = fma4(m.w, get4(room.v + (whole + 3) * VS + c), y);
}

DEV void update_state(const Room& room) {
    float last = room.g[CHUNK - 1], all = expf(last);
    for (u32 t = threadIdx.x; t < DK * 2; t += THREADS) {
        u32 r = t / 8 * 4, c = t % 8 * 4;
        float4 sum[4];
#pragma unroll
        for (u32 x = 0; x < 4; x++) {
            float4 s = get4(room.s + (r + x) * COLUMNS + c);
            sum[x] = make_float4(all * s.x, all * s.y, all * s.z, all * s.w);
        }
#pragma unroll 4
        for (u32 i = 0; i < CHUNK; i++) {
            float4 k = get4(room.k + i * KS + r), v = get4(room.v + i * VS + c);
            float left = expf(last - room.g[i]);
            v = make_float4(v.x * left, v.y * left, v.z * left, v.w * left);
            sum[0] = fma4(k.x, v, sum[0]), sum[1] = fma4(k.y, v, sum[1]);
            sum[2] = fma4(k.z, v, sum[2]), sum[3] = fma4(k.w, v, sum[3]);
        }
#pragma unroll
        for (u32 x = 0; x < 4; x++) *(float4*)(room.s + (r + x) * COLUMNS + c) = sum[x];
    }
}

/// True in the block that brings the last of a chunk's columns.
DEV bool last_slice(u32* counter, u32* flag) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // One thread's fence covers what the barrier has ordered before it.
        __threadfence();
        bool last = atomicAdd(counter, 1u) + 1 == SLICES;
        if (last) *counter = 0;
        *flag = last;
        __threadfence();
    }
    __syncthreads();
    return *flag;
}

/// Norm and gate of `n` rows of a head, one row a warp.
DEV void gated_norms(const float* y, const float* z, const void* norm, float eps, u32 first_row, u32 n, u32 h,
                     float* out_f32, u16* out_bf16) {
    u32 lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < n; i += THREADS / 32) {
        u64 at = u64(first_row + i) * VALUES + h * DV;
        float x[SLICES], sum = 0;
#pragma unroll
        for (u32 j = 0; j < SLICES; j++) x[j] = ld_fresh(y + at + lane + 32 * j), sum = fmaf(x[j], x[j], sum);
        float factor = 1.0f / sqrtf(warp_sum(sum) / float(DV) + eps);
#pragma unroll
        for (u32 j = 0; j < SLICES; j++) {
            u32 c = lane + 32 * j;
            float result = x[j] * factor * small_at<N_FORMAT>(norm, c) * silu(z[at + c]);
            if (out_f32) out_f32[at + c] = result;
            if (out_bf16) out_bf16[at + c] = f32_to_bf16(result);
        }
    }
}

/// `raw` holds [rows][V_HEADS][DV] outputs before their norm; `done` one counter a chunk and head, zero
/// between launches.
extern "C" __global__ void __launch_bounds__(THREADS)
    delta_chunk(const float* qkv, const float* z, const float* a,
                const float* b, const void* a_log, const void* dt_bias,
                const void* norm, float* state, const u32* seg_start,
                const u32* slot, float* out_f32, u16* out_bf16,
                float* raw, u32* done, const Shape* shape, float eps) {
    SPARK_DYNAMIC_SHARED(base);
    __shared__ u32 flag;
    pdl_launch();
    u32 slice = blockIdx.x % SLICES, h = blockIdx.x / SLICES, s = blockIdx.y;
    if (s >= shape->seqs) {
        pdl_wait();
        return;
    }
    Room room(base);
    float* home = state + (u64(slot[s]) * V_HEADS + h) * DK * DV + slice * COLUMNS;
    for (u32 t = threadIdx.x; t < DK * 8; t += THREADS) {
        float4 x = ld_f4(home + u64(t / 8) * DV + t % 8 * 4);
        *(float4*)(room.s + t / 8 * COLUMNS + t % 8 * 4) = x;
    }
    float rate = -expf(small_at<A_FORMAT>(a_log, h)), bias = small_at<DT_FORMAT>(dt_bias, h);
    u32 start = seg_start[s], rows = seg_start[s + 1] - start, i = threadIdx.x / 8, c = threadIdx.x % 8 * 4;
    pdl_wait();
    for (u32 from = 0; from < rows; from += CHUNK) {
        u32 first_row = start + from, n = min(CHUNK, rows - from), index = first_row / CHUNK + s;
        __syncthreads();
        load_units(room, qkv, first_row, n, h / (V_HEADS / K_HEADS));
        load_gates(room, a, b, first_row, n, h, rate, bias);
        float4 v = make_float4(0, 0, 0, 0), with_k, y;
        if (i < n) v = ld_f4(qkv + u64(first_row + i) * WIDTH + 2 * KEYS + h * DV + slice * COLUMNS + c);
        __syncthreads();
        products(room);
        through_state(room, i, c, with_k, y);
        float beta = room.beta[i], decay = expf(room.g[i]);
        *(float4*)(room.v + i * VS + c) =
            make_float4(beta * (v.x - decay * with_k.x), beta * (v.y - decay * with_k.y),
                        beta * (v.z - decay * with_k.z), beta * (v.w - decay * with_k.w));
        __syncthreads();
        solve(room);
        __syncthreads();
        y = make_float4(decay * y.x, decay * y.y, decay * y.z, decay * y.w);
        add_earlier(room, i, c, y);
        if (i < n) st_f4(raw + u64(first_row + i) * VALUES + h * DV + slice * COLUMNS + c, y);
        update_state(room);
        if (last_slice(done + index * V_HEADS + h, &flag))
            gated_norms(raw, z, norm, eps, first_row, n, h, out_f32, out_bf16);
    }
    __syncthreads();
    for (u32 t = threadIdx.x; t < DK * 8; t += THREADS)
        st_f4(home + u64(t / 8) * DV + t % 8 * 4, get4(room.s + t / 8 * COLUMNS + t % 8 * 4));
}
