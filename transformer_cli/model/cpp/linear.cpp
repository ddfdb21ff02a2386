// What the gradient of a linear layer needs of that of its outputs, in one pass. compiled_products.py
// calls it, and sublayers.cpp; rows are turned and scaled for cross_entropy.cpp.

#include <algorithm>

#include "registers.h"

namespace {

constexpr long TOGETHER = 64;  // rows
constexpr long WIDE = 64;      // columns
constexpr long LINE = 32;      // numbers in bf16 of a cache's line

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

// Some rows of some columns, in a place of its own: where they come from, rows may be so far apart that few of them stay
// in the cache.
struct Block {
    uint16_t numbers[TOGETHER][WIDE];

    // n of its rows to their places in some rows of (columns, rows).
    void turn(uint16_t *to, long rows, long n, long width) const {
        uint16_t columns[16][TOGETHER];
        for (long d = 0; d < width; d += 16) {
            for (long i = 0; i < n; i += 16) transpose(numbers[i] + d, WIDE, columns[0] + i, TOGETHER);
            for (long c = d; c < std::min(width, d + 16); c++) {
                if (n == TOGETHER)
                    std::memcpy(to + c * rows, columns[c - d], sizeof *columns);
                else
                    std::copy_n(columns[c - d], n, to + c * rows);
            }
        }
    }
};

// make(start, n, first, width) of so many rows, and as many columns as are asked for, down the columns.
template <typename F>
void each_block(long rows, long D, long columns, int threads, F make) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (long first = 0; first < D; first += columns)
        for (long start = 0; start < rows; start += TOGETHER)
            make(start, std::min(TOGETHER, rows - start), first, std::min(columns, D - first));
}

// The same part of the row that the block below has in place of this one.
inline void send_for_below(const uint16_t *row, long D) {
    for (long d = 0; d < WIDE; d += LINE) __builtin_prefetch(row + TOGETHER * D + d);
}

// The sum of each column of a gradient, which becomes zero where outputs made by max(0, x) are, if there are such. oneDNN
// makes these zero of NaN, too: a bias that is none is not hidden here. turned: (D, rows), if that is wanted, of bf16.
template <typename T>
void linear_back(T *grad, const T *made, const T *bias, T *sums, float *room, T *turned, long rows, long D,
                 int threads) {
    each_block(rows, D, turned ? WIDE : D, threads, [&](long start, long n, long first, long width) {
        Block block;
        float *total = room + start / TOGETHER * D + first;
        std::fill_n(total, width, 0.0f);
        for (long i = 0; i < n; i++) {
            T *own = grad + (start + i) * D + first;
            const T *of = made ? made + (start + i) * D + first : nullptr;
            for (long d = 0; d < width; d += W) {
                vec x = load(own + d);
                if (of) {
                    x = load(of + d) <= 0 ? vec{} : x;
                    store(own + d, x);
                }
                store(total + d, load(total + d) + x);
            }
            if constexpr (sizeof(T) == sizeof(uint16_t)) {
                if (!turned) continue;
                send_for_below(own, D);
                if (of) send_for_below(of, D);
                std::copy_n(own, width, block.numbers[i]);
            }
        }
        if constexpr (sizeof(T) == sizeof(uint16_t))
            if (turned) block.turn(turned + first * rows + start, rows, n, width);
    });
    for (long d = 0; d < D; d += W) {
        vec total = vec{};
        for (long block = 0; block * TOGETHER < rows; block++) total += load(room + block * D + d);
        store(sums + d, bias ? total + 0 * load(bias + d) : total);
    }
}

}  // namespace

extern "C" int64_t linear_room(int64_t rows, int64_t width) { return (rows + TOGETHER - 1) / TOGETHER * width; }

// (rows, width) to (width, rows), each row times a number of its own, if there are such.
extern "C" void turn_bf16(const uint16_t *x, const float *scales, uint16_t *turned, int64_t rows, int64_t width,
                          int threads) {
    each_block(rows, width, WIDE, threads, [&](long start, long n, long first, long n_columns) {
        Block block;
        for (long i = 0; i < n; i++) {
            const uint16_t *from = x + (start + i) * width + first;
            uint16_t *to = block.numbers[i];
            send_for_below(from, width);
            if (!scales) {
                std::copy_n(from, n_columns, to);
                continue;
            }
            const float scale = scales[start + i];
            long d = 0;
            for (; d + W <= n_columns; d += W) store(to + d, load(from + d) * scale);
            for (; d < n_columns; d++) put(to + d, one(from + d) * scale);
        }
        block.turn(turned + first * rows + start, rows, n, n_columns);
    });
}

#define FOR(T, NAME)                                                                                                   \
    extern "C" void linear_back_##NAME(T *grad, const T *made, const T *bias, T *sums, float *room, T *turned,         \
                                       int64_t rows, int64_t width, int threads) {                                     \
        linear_back(grad, made, bias, sums, room, turned, rows, width, threads);                                       \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
