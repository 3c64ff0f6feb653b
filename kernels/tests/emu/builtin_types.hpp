// The vector types that the device compiler knows without a header.
#pragma once

#define EMU_VECTOR(name, type, alignment)                                                     \
    struct name##1 { type x; };                                                               \
    struct alignas(2 * (alignment)) name##2 { type x, y; };                                   \
    struct name##3 { type x, y, z; };                                                         \
    struct alignas(4 * (alignment) > 16 ? 16 : 4 * (alignment)) name##4 { type x, y, z, w; }; \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                   \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }        \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EMU_VECTOR(char, signed char, 1)
EMU_VECTOR(uchar, unsigned char, 1)
EMU_VECTOR(short, short, 2)
EMU_VECTOR(ushort, unsigned short, 2)
EMU_VECTOR(int, int, 4)
EMU_VECTOR(uint, unsigned, 4)
EMU_VECTOR(float, float, 4)
EMU_VECTOR(longlong, long long, 8)
EMU_VECTOR(ulonglong, unsigned long long, 8)
EMU_VECTOR(double, double, 8)
#undef EMU_VECTOR

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
