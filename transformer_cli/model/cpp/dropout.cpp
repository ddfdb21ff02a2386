// x without a share of its elements, the others scaled, and a residual added. compiled.py calls it.
//
// Each element has 16 bits of Philox4x32-7 (Salmon et al. 2011), by the seed and its place alone: so the way back draws
// the same ones again.

#include <algorithm>

#include "registers.h"

namespace {

constexpr int CHUNK = 64;  // elements, of 8 counters with 4 words each
constexpr int ROUNDS = 7;  // which pass BigCrush (table 2 there); it is computing that takes the time here

typedef uint64_t longs __attribute__((vector_size(64)));
typedef uint32_t eight __attribute__((vector_size(32)));

inline longs times(longs x, uint32_t by) {  // of the lower halves
#if defined(__AVX512F__)
    return (longs)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi64(by));
#else
    return (x & 0xffffffff) * by;
#endif
}

inline void philox(uint64_t chunk, uint64_t seed, uint16_t *bits) {
    longs x[4] = {longs{} + 8 * chunk + longs{0, 1, 2, 3, 4, 5, 6, 7}};  // only lower halves count
    x[1] = x[0] >> 32, x[2] = x[3] = longs{};
    uint32_t key = seed, other = seed >> 32;
    for (int round = 0; round < ROUNDS; round++, key += 0x9E3779B9, other += 0xBB67AE85) {
        const longs left = times(x[0], 0xD2511F53), right = times(x[2], 0xCD9E8D57);
        x[0] = (right >> 32) ^ x[1] ^ (uint64_t)key, x[1] = right;
        x[2] = (left >> 32) ^ x[3] ^ (uint64_t)other, x[3] = left;
    }
    for (int word = 0; word < 4; word++) {
        const eight lower = __builtin_convertvector(x[word], eight);
        std::memcpy(bits + 16 * word, &lower, sizeof lower);
    }
}

template <typename T>
void drop_chunk(const T *x, const T *residual, T *output, const uint16_t *bits, uint32_t dropped, float scale) {
    for (int i = 0; i < CHUNK; i += W) {
        halves own;
        std::memcpy(&own, bits + i, sizeof own);
        const ints kept = __builtin_convertvector(own, words) >= dropped;
        const vec made = kept ? load(x + i) * scale : vec{};
        store(output + i, residual ? load(residual + i) + made : made);
    }
}

template <typename T>
void drop(const T *x, const T *residual, T *output, long n, uint64_t seed, uint32_t dropped, float scale, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long chunk = 0; chunk < (n + CHUNK - 1) / CHUNK; chunk++) {
        const long at = chunk * CHUNK, left = std::min<long>(CHUNK, n - at);
        uint16_t bits[CHUNK] = {};
        if (dropped) philox(chunk, seed, bits);
        if (left == CHUNK) {
            drop_chunk(x + at, residual ? residual + at : nullptr, output + at, bits, dropped, scale);
            continue;
        }
        T last[CHUNK] = {}, added[CHUNK] = {}, made[CHUNK];
        std::copy_n(x + at, left, last);
        if (residual) std::copy_n(residual + at, left, added);
        drop_chunk(last, residual ? added : nullptr, made, bits, dropped, scale);
        std::copy_n(made, left, output + at);
    }
}

}  // namespace

#define FOR(T, NAME)                                                                                                   \
    extern "C" void drop_##NAME(const T *x, const T *residual, T *output, int64_t n, uint64_t seed, uint32_t dropped,  \
                                float scale, int threads) {                                                            \
        drop(x, residual, output, n, seed, dropped, scale, threads);                                                   \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
