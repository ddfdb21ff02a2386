// Products in bf16 of matrices that are others at each call, as training has them. compiled.py calls it.
//
// Each thread lays out the columns that it multiplies by as panels (panels.h) of its own, which stay in its cache.

#include "panels.h"

namespace {

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

// Rows of b, (outputs, inputs), to the columns of a panel.
void from_rows(const uint16_t *b, const Panel &panel, uint32_t *to) {
    const long pairs = (panel.inputs + 1) / 2;
    for (long o = 0; o < PANEL; o += W)
        for (long p = 0; p < pairs; p += W) {
            const long numbers = std::min<long>(panel.inputs - 2 * p, 2 * W);
            words x[W] = {};
            for (long i = 0; i < std::min<long>(W, panel.width - o); i++) {
                const uint16_t *from = b + (panel.first + o + i) * panel.inputs + 2 * p;
                if (numbers == 2 * W)
                    std::memcpy(x + i, from, sizeof(words));
                else
                    std::memcpy(x + i, from, numbers * sizeof(uint16_t));
            }
            transpose(x);
            for (long i = 0; i < std::min<long>(W, pairs - p); i++)
                std::memcpy(to + (p + i) * PANEL + o, x + i, sizeof(words));
        }
}

// Columns of b, (inputs, outputs).
void from_columns(const uint16_t *b, const Panel &panel, uint32_t *to) {
    for (long i = 0; i < panel.inputs; i += 2, to += PANEL) {
        const uint16_t *upper = b + i * panel.outputs + panel.first, *lower = upper + panel.outputs;
        const bool is_pair = i + 1 < panel.inputs;
        if (is_pair && panel.width == PANEL) {
            for (long o = 0; o < PANEL; o += W) {
                halves x, y;
                std::memcpy(&x, upper + o, sizeof x);
                std::memcpy(&y, lower + o, sizeof y);
                const words made = __builtin_convertvector(x, words) | __builtin_convertvector(y, words) << 16;
                std::memcpy(to + o, &made, sizeof made);
            }
        } else {
            std::fill_n(to, PANEL, 0);
            for (long o = 0; o < panel.width; o++) to[o] = upper[o] | (is_pair ? (uint32_t)lower[o] << 16 : 0);
        }
    }
}

}  // namespace

extern "C" int64_t product_room(int64_t inputs) { return (inputs + 1) / 2 * PANEL; }

// a b + bias, of a (rows, inputs); b is (inputs, outputs) or, where its rows are columns, (outputs, inputs).
extern "C" void multiply_bf16(const uint16_t *a, const uint16_t *b, const uint16_t *bias, uint16_t *made, uint32_t *room,
                              int64_t rows, int64_t inputs, int64_t outputs, int by_rows, int rectifies, int threads) {
#pragma omp parallel num_threads(threads)
    {
        uint32_t *own = room + omp_get_thread_num() * product_room(inputs);
        float biases[PANEL];
        multiply(inputs, outputs, a, made, rows, {rectifies ? RELU : NONE}, [&](Panel &panel) {
            (by_rows ? from_rows : from_columns)(b, panel, own);
            for (long o = 0; bias && o < panel.width; o++) biases[o] = one(bias + panel.first + o);
            panel.weights = own, panel.bias = bias ? biases : nullptr;
        });
    }
}
