// Numbers as a register holds them, W at a time: read and written in fp32 or bf16, between that in fp32.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, FREE = 16;  // registers for sums, of 32
#else
constexpr int W = 8, FREE = 8;  // of 16
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ints __attribute__((vector_size(4 * W)));
typedef uint32_t words __attribute__((vector_size(4 * W)));
typedef uint16_t halves __attribute__((vector_size(2 * W)));

inline vec load(const float *from) {
    vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

inline vec load(const uint16_t *from) {  // bf16: the upper half of an fp32
    halves x;
    std::memcpy(&x, from, sizeof x);
    return (vec)(__builtin_convertvector(x, words) << 16);
}

inline void store(float *to, vec x) { std::memcpy(to, &x, sizeof x); }

inline void store(uint16_t *to, vec x) {  // to the nearest, of two the even one; NaN stays one
    words bits = (words)x;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    halves half = __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40, halves);
    std::memcpy(to, &half, sizeof half);
}

inline float sum(vec x) {
    float lanes[W], total = 0;
    store(lanes, x);
    for (int i = 0; i < W; i++) total += lanes[i];
    return total;
}

}  // namespace
