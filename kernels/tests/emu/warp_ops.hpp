// The warp-wide instructions that our inline PTX uses: mma, ldmatrix, movmatrix, cp.async.
#pragma once

namespace emu {

static inline float bf16(unsigned bits) {
    bits <<= 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

/// d += a b for one 16 x 8 x 16 tile; a is row major, b column major, both pairs of BF16 in a register (low
/// half first). Products are exact; they are summed in double and rounded once, which is at least as exact as
/// the hardware.
static inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                            int line = __builtin_LINE()) {
    unsigned in[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const Slot* slots = collective("mma", in, sizeof in, line);
    auto word = [&](unsigned lane, unsigned at) {
        unsigned w;
        std::memcpy(&w, slots[lane].bytes + 4 * at, 4);
        return w;
    };
    unsigned g = T->lane / 4, t = T->lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned high = i / 2, column = 2 * t + i % 2;
        double sum = d[i];
        for (unsigned half = 0; half < 2; half++)
            for (unsigned p = 0; p < 4; p++) {
                unsigned x = word(4 * g + p, 2 * half + high), y = word(4 * column + p, 4 + half);
                sum += double(bf16(x & 0xffff)) * bf16(y & 0xffff);
                sum += double(bf16(x >> 16)) * bf16(y >> 16);
            }
        d[i] = float(sum);
    }
}

/// d += a b for one 16 x 8 x 32 tile of signed bytes (four in a register, lowest first).
static inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                          int line = __builtin_LINE()) {
    unsigned in[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const Slot* slots = collective("mma.s8", in, sizeof in, line);
    unsigned g = T->lane / 4, t = T->lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned high = i / 2, column = 2 * t + i % 2;
        for (unsigned half = 0; half < 2; half++)
            for (unsigned p = 0; p < 4; p++)
                for (unsigned e = 0; e < 4; e++)
                    d[i] += int((signed char)slots[4 * g + p].bytes[4 * (2 * half + high) + e]) *
                            int((signed char)slots[4 * column + p].bytes[4 * (4 + half) + e]);
    }
}

/// `count` 8 x 8 matrices of 16-bit values; lane 8 m + r brings the address of row r of matrix m.
static inline void ldmatrix(unsigned* r, int count, const void* row, bool trans,
                            int line = __builtin_LINE()) {
    bool used = T->lane < unsigned(8 * count);
    if (used && reinterpret_cast<uintptr_t>(row) % 16)
        fail("ldmatrix at line %d: row is not 16-byte aligned", line);
    const Slot* slots = collective(trans ? "ldmatrix.trans" : "ldmatrix", &row, sizeof row, line);
    unsigned a = T->lane / 4, b = 2 * (T->lane % 4);
    for (int m = 0; m < count; m++) {
        auto value = [&](unsigned y, unsigned x) {
            return unsigned(from_lane<const unsigned short*>(slots, 8 * m + y)[x]);
        };
        r[m] = trans ? value(b, a) | value(b + 1, a) << 16 : value(a, b) | value(a, b + 1) << 16;
    }
}

/// Transposes an 8 x 8 matrix of 16-bit values held as a fragment.
static inline unsigned movmatrix(unsigned x, int line = __builtin_LINE()) {
    const Slot* slots = collective("movmatrix", &x, sizeof x, line);
    unsigned a = T->lane / 4, b = 2 * (T->lane % 4);
    auto value = [&](unsigned y, unsigned x) {
        return from_lane<unsigned>(slots, 4 * y + x / 2) >> (16 * (x % 2)) & 0xffff;
    };
    return value(b, a) | value(b + 1, a) << 16;
}

static inline void land(unsigned groups) {
    auto& copies = T->copies;
    size_t n = 0;
    for (; n < copies.size() && copies[n].group < groups; n++) {
        const Copy& c = copies[n];
        std::memcpy(c.to, c.from, c.take);
        std::memset(static_cast<char*>(c.to) + c.take, 0, c.bytes - c.take);
    }
    copies.erase(copies.begin(), copies.begin() + n);
}

static inline void cp_async(void* to, const void* from, int bytes, int take = -1,
                            int line = __builtin_LINE()) {
    if (take < 0) take = bytes;
    if (bytes != 4 && bytes != 8 && bytes != 16) fail("cp.async of %d bytes at line %d", bytes, line);
    if (reinterpret_cast<uintptr_t>(to) % bytes || (take && reinterpret_cast<uintptr_t>(from) % bytes))
        fail("cp.async at line %d is misaligned", line);
    T->copies.push_back({to, from, bytes, take, T->group});
}

static inline void cp_async_commit() { T->group++; }

/// Waits until at most `n` of the newest committed groups are on their way.
static inline void cp_async_wait(int n) {
    if (T->group > unsigned(n)) land(T->group - unsigned(n));
}

static inline void cp_async_wait_all() { land(T->group + 1); }

/// A vector load or store of `bytes` must be aligned to them. Returns the address.
template <class V>
static inline V* aligned(V* p, unsigned bytes, int line = __builtin_LINE()) {
    if (reinterpret_cast<uintptr_t>(p) % bytes)
        fail("access of %u bytes at line %d is misaligned", bytes, line);
    return p;
}

}  // namespace emu
