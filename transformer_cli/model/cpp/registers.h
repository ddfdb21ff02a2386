// Numbers as a register holds them, W at a time: read and written in fp32 or bf16, between that in fp32.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
#else
constexpr int W = 8;
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

// To the nearest, of two the even one; NaN stays one. By an instruction, where there is one, which takes 0 for what is
// below 2^-126.
inline void store(uint16_t *to, vec x) {
#if defined(__AVX512BF16__)
    const __m256bh half = _mm512_cvtneps_pbh((__m512)x);
#else
    words bits = (words)x;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    halves half = __builtin_convertvector(x == x ? rounded : (bits >> 16) | 0x40, halves);
#endif
    std::memcpy(to, &half, sizeof half);
}

// Two registers, one behind the other: of bf16 at once, which is a whole line of the cache.
inline void store(float *to, vec x, vec y) { store(to, x), store(to + W, y); }

inline void store(uint16_t *to, vec x, vec y) {
#if defined(__AVX512BF16__)
    const __m512bh both = _mm512_cvtne2ps_pbh((__m512)y, (__m512)x);
    std::memcpy(to, &both, sizeof both);
#else
    store(to, x), store(to + W, y);
#endif
}

#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_PAIRS = true;
#else
constexpr bool MULTIPLIES_PAIRS = false;
#endif

// What 32 bits hold: a number in fp32, or two in bf16.
template <typename T>
constexpr int AT_ONCE = sizeof(float) / sizeof(T);

inline words load_words(const uint32_t *from) {
    words x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <typename T>
inline uint32_t word(const T *from, int n = AT_ONCE<T>) {  // of n numbers
    uint32_t x = 0;
    std::memcpy(&x, from, n * sizeof(T));
    return x;
}

// sum + a b in each lane; in bf16 with both products.
template <typename T>
inline vec plus_product(vec sum, words a, words b) {
    if (sizeof(T) == sizeof(float)) return sum + (vec)a * (vec)b;
#if defined(__AVX512BF16__)
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
    return sum + (vec)(a << 16) * (vec)(b << 16) + (vec)(a >> 16 << 16) * (vec)(b >> 16 << 16);
#endif
}

inline float one(const float *from) { return *from; }

inline float one(const uint16_t *from) {
    const uint32_t bits = (uint32_t)*from << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline void put(float *to, float x) { *to = x; }

inline void put(uint16_t *to, float x) {
    uint16_t all[W];
    store(all, vec{} + x);
    *to = all[0];
}

inline float sum(vec x) {  // by halves
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    typedef float half __attribute__((vector_size(2 * W)));
    typedef float quarter __attribute__((vector_size(W)));
    half upper, lower;
    std::memcpy(&lower, &x, sizeof lower);
    std::memcpy(&upper, (const char *)&x + sizeof lower, sizeof upper);
    lower += upper;
    quarter right, left;
    std::memcpy(&left, &lower, sizeof left);
    std::memcpy(&right, (const char *)&lower + sizeof left, sizeof right);
    left += right;
    float total = left[0];
    for (int i = 1; i < W / 4; i++) total += left[i];
    return total;
#endif
}

inline bool any(ints mask) {
    int32_t lanes[W], all = 0;
    std::memcpy(lanes, &mask, sizeof lanes);
    for (int i = 0; i < W; i++) all |= lanes[i];
    return all;
}

// e^x for x <= 0, within 2 units in the last place: 2^k e^r with |r| <= ln(2) / 2 (Cephes, expf).
inline vec exponential(vec x) {
    x = x < -87.0f ? vec{} - 87.0f : x;
    ints k = __builtin_convertvector(x * 1.44269504f - 0.5f, ints);
    vec whole = __builtin_convertvector(k, vec);
    vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec y = vec{} + 1.9875691500e-4f;
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    return y * (vec)((k + 127) << 23);
}

inline vec exchanged(vec x) {  // the two of each pair
    ints order;
    for (int i = 0; i < W; i++) order[i] = i ^ 1;
    return __builtin_shuffle(x, order);
}

// The words of two registers by turns: the first half of each, or the second.
inline words interleaved(words a, words b, int half) {
    words order;
    for (int i = 0; i < W; i++) order[i] = half * W / 2 + i / 2 + i % 2 * W;
    return __builtin_shuffle(a, b, order);
}

// W rows of W words become columns: in each round the number of a word's row takes a bit of its place.
inline void transpose(words *x) {
    words y[W];
    for (int bit = 1; bit < W; bit *= 2) {
        for (int i = 0; i < W / 2; i++) {
            y[2 * i] = interleaved(x[i], x[i + W / 2], 0);
            y[2 * i + 1] = interleaved(x[i], x[i + W / 2], 1);
        }
        for (int i = 0; i < W; i++) x[i] = y[i];
    }
}

// Some of a head's K features, turned. waves: of these features the cosines, each twice; K behind each a sine, below 0
// and above.
inline vec turned(vec x, const float *waves, long K, float way = 1) {
    return x * load(waves) + exchanged(x) * way * load(waves + K);
}

}  // namespace
