// What the gradient of a linear layer needs of that of its outputs, in one pass. compiled_products.py
// calls it, and sublayers.cpp; rows are turned and scaled for cross_entropy.cpp.

#include <algorithm>

#include "registers.h"

namespace {

constexpr long TOGETHER = 64;  // rows

typedef uint16_t line __attribute__((vector_size(32)));

// Of 16 rows of 16 numbers, those of two registers by turns, in each half of a register.
inline line low(line a, line b) {
    return __builtin_shuffle(a, b, line{0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27});
}
inline line high(line a, line b) {
    return __builtin_shuffle(a, b, line{4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31});
}
inline line lower(line a, line b) { return __builtin_shuffle(a, b, line{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}); }
inline line upper(line a, line b) { return __builtin_shuffle(a, b, line{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31}); }

// 16 rows of 16 numbers become columns: three rounds within halves of registers, then the halves themselves.
inline void transpose(const uint16_t *from, long step, uint16_t *to, long width) {
    line x[16], y[16];
    for (int i = 0; i < 16; i++) std::memcpy(x + i, from + i * step, sizeof(line));
    for (int round = 0; round < 3; round++) {
        for (int half = 0; half < 16; half += 8)
            for (int i = 0; i < 4; i++) {
                y[half + 2 * i] = low(x[half + i], x[half + i + 4]);
                y[half + 2 * i + 1] = high(x[half + i], x[half + i + 4]);
            }
        std::copy_n(y, 16, x);
    }
    for (int i = 0; i < 8; i++) {
        const line above = lower(x[i], x[i + 8]), below = upper(x[i], x[i + 8]);
        std::memcpy(to + i * width, &above, sizeof(line));
        std::memcpy(to + (i + 8) * width, &below, sizeof(line));
    }
}

// 16 rows of 16 numbers, each row times a number of its own.
inline void scale(const uint16_t *from, long step, const float *scales, uint16_t *to) {
    for (int i = 0; i < 16; i++)
        for (int x = 0; x < 16; x += W) store(to + i * 16 + x, load(from + i * step + x) * scales[i]);
}

// Some of the rows of (rows, D) to their places in (D, rows); scales: of each row, if it is scaled.
void turn(const uint16_t *x, const float *scales, uint16_t *turned, long first, long n, long rows, long D) {
    for (long d = 0; d < D; d += 16) {
        const int width = std::min(16L, D - d);
        uint16_t columns[16][TOGETHER], scaled[16 * 16];
        long i = 0;
        for (; width == 16 && i + 16 <= n; i += 16) {
            const uint16_t *from = x + (first + i) * D + d;
            if (scales) scale(from, D, scales + first + i, scaled);
            transpose(scales ? scaled : from, scales ? 16 : D, columns[0] + i, TOGETHER);
        }
        for (; i < n; i++)
            for (int c = 0; c < width; c++) {
                const uint16_t *from = x + (first + i) * D + d + c;
                if (scales)
                    put(columns[c] + i, one(from) * scales[first + i]);
                else
                    columns[c][i] = *from;
            }
        for (int c = 0; c < width; c++) std::memcpy(turned + (d + c) * rows + first, columns[c], n * sizeof(uint16_t));
    }
}

// The sum of each column of a gradient, which becomes zero where outputs made by max(0, x) are, if there are such. oneDNN
// makes these zero of NaN, too: a bias that is none is not hidden here. turned: (D, rows), if that is wanted, of bf16.
template <typename T>
void linear_back(T *grad, const T *made, const T *bias, T *sums, float *room, T *turned, long rows, long D,
                 int threads) {
    const long blocks = (rows + TOGETHER - 1) / TOGETHER;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long block = 0; block < blocks; block++) {
        float *total = room + block * D;
        std::fill_n(total, D, 0.0f);
        for (long i = block * TOGETHER; i < std::min(rows, (block + 1) * TOGETHER); i++)
            for (long d = 0; d < D; d += W) {
                vec x = load(grad + i * D + d);
                if (made) {
                    x = load(made + i * D + d) <= 0 ? vec{} : x;
                    store(grad + i * D + d, x);
                }
                store(total + d, load(total + d) + x);
            }
        const long first = block * TOGETHER;
        if constexpr (sizeof(T) == sizeof(uint16_t))
            if (turned) turn(grad, nullptr, turned, first, std::min(TOGETHER, rows - first), rows, D);
    }
    for (long d = 0; d < D; d += W) {
        vec total = vec{};
        for (long block = 0; block < blocks; block++) total += load(room + block * D + d);
        store(sums + d, bias ? total + 0 * load(bias + d) : total);
    }
}

}  // namespace

extern "C" int64_t linear_room(int64_t rows, int64_t width) { return (rows + TOGETHER - 1) / TOGETHER * width; }

extern "C" void turn_bf16(const uint16_t *x, const float *scales, uint16_t *turned, int64_t rows, int64_t width,
                          int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long first = 0; first < rows; first += TOGETHER)
        turn(x, scales, turned, first, std::min(TOGETHER, rows - first), rows, width);
}

#define FOR(T, NAME)                                                                                                   \
    extern "C" void linear_back_##NAME(T *grad, const T *made, const T *bias, T *sums, float *room, T *turned,         \
                                       int64_t rows, int64_t width, int threads) {                                     \
        linear_back(grad, made, bias, sums, room, turned, rows, width, threads);                                       \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
