// Products in bf16 of matrices that are others at each call, as training has them. compiled_products.py,
// sublayers.cpp and cross_entropy.cpp call it.
//
// Each thread lays out the columns that it multiplies by as panels (panels.h) of its own, of so many inputs at a time
// that they stay in its cache.

#include "panels.h"

namespace {

constexpr long DEPTH = 2048;  // inputs at a time

// What is multiplied by: (outputs, inputs) where its rows are columns, else (inputs, outputs).
struct Right {
    const uint16_t *numbers;
    long width;  // of what lies side by side
    bool by_rows;
};

// Rows of b to the columns of a panel: some of the columns, and of the inputs.
void from_rows(const Right &b, long first, long width, long start, long inputs, uint32_t *to) {
    const long pairs = (inputs + 1) / 2;
    for (long o = 0; o < PANEL; o += W)
        for (long p = 0; p < pairs; p += W) {
            const long numbers = std::min<long>(inputs - 2 * p, 2 * W);
            words x[W] = {};
            for (long i = 0; i < std::min<long>(W, width - o); i++) {
                const uint16_t *from = b.numbers + (first + o + i) * b.width + start + 2 * p;
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

// Columns of b.
void from_columns(const Right &b, long first, long width, long start, long inputs, uint32_t *to) {
    for (long i = 0; i < inputs; i += 2, to += PANEL) {
        const uint16_t *upper = b.numbers + (start + i) * b.width + first, *lower = upper + b.width;
        const bool is_pair = i + 1 < inputs;
        if (is_pair && width == PANEL) {
            for (long o = 0; o < PANEL; o += W) {
                halves x, y;
                std::memcpy(&x, upper + o, sizeof x);
                std::memcpy(&y, lower + o, sizeof y);
                const words made = __builtin_convertvector(x, words) | __builtin_convertvector(y, words) << 16;
                std::memcpy(to + o, &made, sizeof made);
            }
        } else {
            std::fill_n(to, PANEL, 0);
            for (long o = 0; o < width; o++) to[o] = upper[o] | (is_pair ? (uint32_t)lower[o] << 16 : 0);
        }
    }
}

constexpr long MOST_WORDS = 1 << 18;  // of panels that are laid out at a time, where products are by tiles
static_assert(DEPTH / 2 * PANEL <= MOST_WORDS);

inline long panel_room(long inputs) { return (std::min(inputs, DEPTH) + 1) / 2 * PANEL; }

inline long panels_at_once(long inputs) {
    return has_tiles() ? std::clamp(MOST_WORDS / std::max(1L, panel_room(inputs)), 1L, MOST_PANELS) : 1;
}

// Some blocks of the rows of a b, by panels of b's columns from `first` on.
template <typename U>
void multiply(const Right &b, long first, long width, const Panel &like, const uint16_t *a, U *made, long rows,
              long from, long to, const After &after, uint32_t *room) {
    Panel panels[MOST_PANELS];
    const long n = (width + PANEL - 1) / PANEL, size = panel_room(like.step);
    float *held = (float *)(room + n * size);
    for (long start = 0; start == 0 || start < like.step; start += DEPTH) {
        for (long p = 0; p < n; p++) {
            Panel &by = panels[p] = like;
            by.inputs = std::min(DEPTH, by.step - start), by.begins = start == 0;
            by.ends = start + by.inputs == by.step;
            by.first += p * PANEL, by.width = std::min<long>(PANEL, width - p * PANEL);
            if (by.bias) by.bias += p * PANEL;
            by.weights = room + p * size;
            (b.by_rows ? from_rows : from_columns)(b, first + p * PANEL, by.width, start, by.inputs, room + p * size);
        }
        multiply(panels, n, a + start, made, rows, from, to, after, held);
    }
}

// The columns of a panel of D rows to rows, added to those where it adds, less the same of each where there is that.
void turned(const float *panel, const float *less, float *made, long D, long width, bool adds) {
    for (long o = 0; o < width; o += W)
        for (long d = 0; d < D; d += W) {
            words x[W] = {};
            for (long i = 0; i < std::min<long>(W, D - d); i++)
                std::memcpy(x + i, panel + (d + i) * PANEL + o, sizeof(words));
            transpose(x);
            for (long i = 0; i < std::min<long>(W, width - o); i++) {
                float *to = made + (o + i) * D + d;
                if (d + W <= D) {
                    vec sum = (vec)x[i];
                    if (adds) sum += load(to);
                    store(to, less ? sum - load(less + d) : sum);
                } else {
                    for (long k = 0; k < D - d; k++)
                        to[k] = ((vec)x[i])[k] + (adds ? to[k] : 0) - (less ? less[d + k] : 0);
                }
            }
        }
}

}  // namespace

// At least what is needed, and never less for more: callers ask for the largest of several products.
extern "C" int64_t product_room(int64_t rows, int64_t inputs) {
    const long held = inputs > DEPTH ? panels_at_once(inputs) * (rows + BLOCK) * PANEL : 0;
    return held + (has_tiles() ? std::min(MOST_PANELS * panel_room(inputs), MOST_WORDS) : panel_room(inputs));
}

// a b + bias, of a (rows, inputs), or max(0, that); or rows of a b, each scaled by a number of its own, less a row.
extern "C" void multiply_bf16(const uint16_t *a, const uint16_t *b, const uint16_t *bias, const float *scales,
                              const float *less, uint16_t *made, uint32_t *room, int64_t rows, int64_t inputs,
                              int64_t outputs, int by_rows, int rectifies, int threads) {
    const Right right{b, by_rows ? inputs : outputs, by_rows != 0};
#pragma omp parallel num_threads(threads)
    {
        uint32_t *own = room + omp_get_thread_num() * product_room(rows, inputs);
        float biases[MOST_PANELS * PANEL];
        each_panel<uint16_t>(outputs, rows, panels_at_once(inputs), [&](long first, long width, long from, long to) {
            for (long o = 0; bias && o < width; o++) biases[o] = one(bias + first + o);
            const Panel panel{nullptr, bias ? biases : nullptr, inputs, inputs, outputs, first, width};
            const After after{rectifies ? RELU : NONE, false, scales, less};
            multiply(right, first, width, panel, a, made, rows, from, to, after, own);
        });
    }
}

// made (outputs, rows) = (a b)^T, or made + that, less the same of each row, of b (inputs, outputs).
extern "C" void learn_bf16(const uint16_t *a, const uint16_t *b, const float *less, float *made, uint32_t *room,
                           int64_t rows, int64_t inputs, int64_t outputs, int adds, int threads) {
    const Right right{b, outputs, false};
    const long size = rows * PANEL;
#pragma omp parallel num_threads(threads)
    {
        uint32_t *own = room + omp_get_thread_num() * (product_room(rows, inputs) + size);
        float *panel = (float *)own;
        each_panel<uint16_t>(outputs, 1, 1, [&](long first, long width, long, long) {
            const Panel by{nullptr, nullptr, inputs, inputs, PANEL, 0, PANEL};
            multiply(right, first, width, by, a, panel, rows, 0, blocks_of<uint16_t>(rows), {}, own + size);
            turned(panel, less, made + first * rows, rows, width, adds);
        });
    }
}
