// Seeded weights straight in device memory: the values and the encoders of the host's synthetic checkpoints, bit for
// bit. A value is a function of (key, index) alone, so a warp makes a block without knowing its neighbours.
//
// Compiled without contraction: where the host rounds twice, so does this. FMT_* says which format.
#include "common.cuh"

DEV u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/// Value `index` of a stream: centre + deviation * (sum of four 16-bit uniforms, centred and scaled to one).
DEV float value(u64 key, u64 index, float centre, float deviation, float scale) {
    u64 bits = mixed(key + index * 0x9e3779b97f4a7c15ull);
    u64 sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    return centre + deviation * ((float(u32(sum)) - 131070.f) * scale);
}

#if defined(FMT_F32) || defined(FMT_F16) || defined(FMT_BF16)

extern "C" __global__ void __launch_bounds__(256)
synth_plain(u8* out, u64 count, u64 key, float centre, float deviation, float scale) {
    u64 step = u64(gridDim.x) * blockDim.x;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        float v = value(key, i, centre, deviation, scale);
#if defined(FMT_F32)
        ((float*)out)[i] = v;
#elif defined(FMT_F16)
        ((u16*)out)[i] = f32_to_f16(v);
#else
        ((u16*)out)[i] = f32_to_bf16(v);
#endif
    }
}

#else

DEV float inverse(float x) { return x == 0.f ? 0.f : 1.f / x; }
/// Rounds half away from zero into 0 ..= most.
DEV u32 code(float x, float most) { return u32(fminf(fmaxf(roundf(x), 0.f), most)); }
DEV int signed_code(float x, float least, float most) { return int(fminf(fmaxf(roundf(x), least), most)); }

/// A block in the making: its codes, its scales, its minima (or nothing), and the two f16 factors.
struct Block {
    u8 codes[256], scales[16], mins[16];
    u16 d, dmin;
};

#if defined(FMT_Q8_0)
constexpr u32 VALUES = 32, BYTES = 34;
#elif defined(FMT_Q4_K)
constexpr u32 VALUES = 256, BYTES = 144, SUBS = 8, QMAX = 15, LEVELS = 63;
#elif defined(FMT_Q5_K)
constexpr u32 VALUES = 256, BYTES = 176, SUBS = 8, QMAX = 31, LEVELS = 63;
#elif defined(FMT_Q6_K)
constexpr u32 VALUES = 256, BYTES = 210;
#elif defined(FMT_Q2_K)
constexpr u32 VALUES = 256, BYTES = 84, SUBS = 16, QMAX = 3, LEVELS = 15;
#endif
/// Values of a lane.
constexpr u32 OWN = VALUES / 32;

#if defined(FMT_Q8_0)

DEV void encode(const float (&v)[OWN], u32 lane, Block& out) {
    float d = warp_max(fabsf(v[0])) / 127.f;
    out.codes[lane] = u8(signed_code(v[0] * inverse(d), -127.f, 127.f));
    if (lane == 0) out.d = f32_to_f16(d);
}
DEV u32 block_byte(const Block& b, u32 p) { return p < 2 ? (b.d >> (8 * p)) & 255 : b.codes[p - 2]; }

#elif defined(FMT_Q6_K)

DEV void encode(const float (&v)[OWN], u32 lane, Block& out) {
    float extreme = 0.f;
#pragma unroll
    for (u32 i = 0; i < OWN; i++) extreme = fabsf(v[i]) > fabsf(extreme) ? v[i] : extreme;
    // A sub-block of 16 lies in two lanes; of equals the first wins.
    float other = __shfl_xor_sync(0xffffffffu, extreme, 1);
    float first = lane & 1 ? other : extreme, second = lane & 1 ? extreme : other;
    float scale = (fabsf(second) > fabsf(first) ? second : first) / -32.f;
    u16 half = f32_to_f16(warp_max(fabsf(scale)) / 127.f);
    float d = f16_to_f32(half);
    int s = signed_code(scale * inverse(d), -127.f, 127.f);
    float inv = inverse(d * float(s));
#pragma unroll
    for (u32 i = 0; i < OWN; i++) {
        out.codes[lane * OWN + i] = u8(signed_code(v[i] * inv, -32.f, 31.f) + 32);
    }
    if (lane % 2 == 0) out.scales[lane / 2] = u8(s);
    if (lane == 0) out.d = half;
}
DEV u32 block_byte(const Block& b, u32 p) {
    if (p < 128) {
        u32 at = 128 * (p / 64) + p % 64;
        return (b.codes[at] & 15) | (b.codes[at + 64] & 15) << 4;
    }
    if (p < 192) {
        u32 at = 128 * ((p - 128) / 32) + p % 32, byte = 0;
#pragma unroll
        for (u32 r = 0; r < 4; r++) byte |= (b.codes[at + 32 * r] >> 4) << (2 * r);
        return byte;
    }
    return p < 208 ? b.scales[p - 192] : (b.d >> (8 * (p - 208))) & 255;
}

#else

/// Scales and minima of SUBS sub-blocks, quantised over the block, and the codes for them.
DEV void encode(const float (&v)[OWN], u32 lane, Block& out) {
    constexpr u32 LANES = 32 / SUBS;
    float least = 0.f, most = 0.f;
#pragma unroll
    for (u32 i = 0; i < OWN; i++) least = fmaxf(least, -v[i]), most = fmaxf(most, v[i]);
#pragma unroll
    for (u32 half = 1; half < LANES; half *= 2) {
        least = fmaxf(least, __shfl_xor_sync(0xffffffffu, least, half));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, half));
    }
    float scale = (most + least) / float(QMAX);
    u16 half_d = f32_to_f16(warp_max(scale) / float(LEVELS));
    u16 half_min = f32_to_f16(warp_max(least) / float(LEVELS));
    float d = f16_to_f32(half_d), dmin = f16_to_f32(half_min);
    u32 s = code(scale * inverse(d), float(LEVELS)), m = code(least * inverse(dmin), float(LEVELS));
    float inv = inverse(d * float(s)), offset = dmin * float(m);
#pragma unroll
    for (u32 i = 0; i < OWN; i++) out.codes[lane * OWN + i] = u8(code((v[i] + offset) * inv, float(QMAX)));
    if (lane % LANES == 0) out.scales[lane / LANES] = u8(s), out.mins[lane / LANES] = u8(m);
    if (lane == 0) out.d = half_d, out.dmin = half_min;
}

DEV u32 factor_byte(const Block& b, u32 p) { return ((p < 2 ? b.d : b.dmin) >> (8 * (p & 1))) & 255; }

#if defined(FMT_Q2_K)
DEV u32 block_byte(const Block& b, u32 p) {
    if (p < 16) return b.scales[p] | b.mins[p] << 4;
    if (p >= 80) return factor_byte(b, p - 80);
    u32 at = 128 * ((p - 16) / 32) + (p - 16) % 32, byte = 0;
#pragma unroll
    for (u32 t = 0; t < 4; t++) byte |= u32(b.codes[at + 32 * t]) << (2 * t);
    return byte;
}
#else
DEV u32 block_byte(const Block& b, u32 p) {
    if (p < 4) return factor_byte(b, p);
    if (p < 8) return b.scales[p - 4] | (b.scales[p] >> 4) << 6;
    if (p < 12) return b.mins[p - 8] | (b.mins[p - 4] >> 4) << 6;
    if (p < 16) return (b.scales[p - 8] & 15) | (b.mins[p - 8] & 15) << 4;
    u32 q = p - 16;
#if defined(FMT_Q5_K)
    if (q < 32) {
        u32 byte = 0;
#pragma unroll
        for (u32 j = 0; j < 8; j++) byte |= (b.codes[32 * j + q] >> 4) << j;
        return byte;
    }
    q -= 32;
#endif
    u32 at = 64 * (q / 32) + q % 32;
    return (b.codes[at] & 15) | (b.codes[at + 32] & 15) << 4;
}
#endif
#endif

/// Where a byte of a block goes: see `planar::block_map`.
struct Moved {
    u16 from, before, plane, first, piece, at;
};

/// `count` matrices of `n` rows of `per_row` blocks, in planes by tile of 16 rows: a warp a block.
extern "C" __global__ void __launch_bounds__(256)
synth_blocks(u8* out, const Moved* map, u32 n, u32 per_row, u64 blocks, u64 key, float centre, float deviation,
             float scale) {
    __shared__ Block made[8];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Block& own = made[warp];
    for (u64 g = u64(blockIdx.x) * 8 + warp; g < blocks; g += u64(gridDim.x) * 8) {
        float v[OWN];
#pragma unroll
        for (u32 i = 0; i < OWN; i++) v[i] = value(key, g * VALUES + lane * OWN + i, centre, deviation, scale);
        encode(v, lane, own);
        __syncwarp();
        u64 row = g / per_row;
        u32 b = u32(g % per_row), r = u32(row % n), tile = r / 16 * 16, rows = min(16u, n - tile);
        u8* start = out + (row - r + tile) * per_row * BYTES;
        for (u32 j = lane; j < BYTES; j += 32) {
            Moved m = map[j];
            u64 to = u64(rows) * (u64(per_row) * m.before + u64(b) * m.plane + m.first);
            start[to + (r - tile) * m.piece + m.at] = u8(block_byte(own, m.from));
        }
        __syncwarp();
    }
}
#endif
