// Linear layers: weights lie in panels, which a thread reads from one end to the other. products.py lays them out. What
// they multiply is in their precision, T; what is made, U, may be in another. Whatever the rows and threads are, sums are
// in the same order.

#pragma once

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "registers.h"
#include "tiles.h"

namespace {

constexpr int REGISTERS = 4, PANEL = REGISTERS * W;
constexpr int MOST = W == 16 ? 6 : 3;  // rows whose sums of a panel stay in registers
constexpr long BLOCK = 2 * TILE;       // and in tiles
constexpr long MOST_PANELS = 16;       // that tiles go through for each block of rows

enum Activation : int64_t { NONE, RELU, SILU, GELU };

// What is done to a product.
struct After {
    Activation activation = NONE;
    bool gates = false;  // whether it is multiplied, then, by what is where it goes
    // Of each row what it is scaled by, then, and what is taken off; a row that is scaled by 0 becomes 0.
    const float *scales = nullptr, *less = nullptr;
};

inline vec silu(vec x) {  // x / (1 + e^-x)
    const vec e = exponential(x < 0 ? x : -x);
    return x * (x < 0 ? e : vec{} + 1) / (1 + e);
}

inline vec activated(Activation by, vec x) {
    if (by == RELU) return x < 0 ? vec{} : x;
    if (by == SILU) return silu(x);
    for (int i = 0; by == GELU && i < W; i++) x[i] = x[i] * 0.5f * (1 + std::erf(x[i] * 0.70710678f));
    return x;
}

// W^T in panels of so many columns, filled up with zeros: (panels, inputs, PANEL), in bf16 (panels, inputs / 2, PANEL, 2).
struct Matrix {
    const uint32_t *panels;
    const float *bias;
    int64_t inputs, outputs;
};

// One of them, of `width` outputs from `first` on: of all inputs, which are `step`, or of some.
struct Panel {
    const uint32_t *weights;
    const float *bias;  // of its first output; none where there is none
    long inputs, step, outputs, first, width;
    bool begins = true, ends = true;  // whether these are the first of the inputs, or the last
};

// Of the sums of a row as many as a register holds, to where they go.
template <typename U>
inline void finish(vec made, const float *bias, Activation by, bool gates, const float *scale, const float *less,
                   U *to) {
    if (bias) made += load(bias);
    made = activated(by, made);
    if (gates) made *= load(to);
    if (scale) made = *scale ? *scale * made - load(less) : vec{};
    store(to, made);
}

// All of a row's: of any activation, of panels that may be narrower. Apart from what it is called by, which is then as
// fast as without.
template <typename U>
[[gnu::noinline]] void finish(const Panel &by, const vec *sums, const After &after, const float *scale, U *to) {
    for (int k = 0; k < by.width; k += W, to += W) {
        const int n = std::min<long>(W, by.width - k);
        float bias[W] = {}, less[W] = {};
        U made[W] = {};
        if (by.bias) std::copy_n(by.bias + k, n, bias);
        if (scale) std::copy_n(after.less + by.first + k, n, less);
        if (after.gates) std::copy_n(to, n, made);
        finish(sums[k / W], by.bias ? bias : nullptr, after.activation, after.gates, scale, less, made);
        std::copy_n(made, n, to);
    }
}

// Those of a panel and a row, to the panel's part of that row of y.
template <typename U>
inline void finish(const Panel &by, const vec *sums, const After &after, long row, U *y) {
    const bool rectifies = after.activation == RELU, is_simple = rectifies || after.activation == NONE;
    const float *scale = after.scales ? after.scales + row : nullptr;
    U *to = y + row * by.outputs + by.first;
    if (is_simple && by.width == PANEL)
        for (int k = 0; k < PANEL; k += W)
            finish(sums[k / W], by.bias ? by.bias + k : nullptr, rectifies ? RELU : NONE, after.gates, scale,
                   scale ? after.less + by.first + k : nullptr, to + k);
    else
        finish(by, sums, after, scale, to);
}

// R rows. Whatever R is, sums are in the same order. held: sums of some inputs, where these are not all.
template <int R, typename T, typename U>
inline void multiply(const Panel &by, const T *x, U *y, After after, float *held) {
    const uint32_t *weights = by.weights;
    vec sums[R][REGISTERS];
    for (int r = 0; r < R; r++)
        for (int k = 0; k < REGISTERS; k++) sums[r][k] = by.begins ? vec{} : load(held + r * PANEL + k * W);
    auto add = [&](long i, int n) {
        for (int k = 0; k < REGISTERS; k++) {
            const words weight = load_words(weights + k * W);
            for (int r = 0; r < R; r++)
                sums[r][k] = plus_product<T>(sums[r][k], words{} + word(x + r * by.step + i, n), weight);
        }
        weights += PANEL;
    };
    long i = 0;
    for (; i + AT_ONCE<T> <= by.inputs; i += AT_ONCE<T>) add(i, AT_ONCE<T>);
    if (i < by.inputs) add(i, by.inputs - i);
    for (int r = 0; r < R; r++) {
        if (by.ends) finish(by, sums[r], after, r, y);
        for (int k = 0; k < PANEL && !by.ends; k += W) store(held + r * PANEL + k, sums[r][k / W]);
    }
}

// Some panels of a product by tiles, each block of rows by all of them, while it is in the cache, as they are. held: of
// each panel (rows, PANEL), where these are not all inputs.
template <typename U>
void multiply_by_tiles(const Panel *panels, long n_panels, const uint16_t *x, U *y, long rows, const After &after,
                       float *held) {
    const long inputs = panels->inputs, step = panels->step, rest = inputs % TILE_INPUTS, whole = inputs - rest;
    const bool begins = panels->begins, ends = panels->ends, rectifies = after.activation == RELU;
    const bool is_plain = (rectifies || after.activation == NONE) && !after.gates && !after.scales;
    const vec least = vec{} + (rectifies ? 0 : -INFINITY);
    auto finish_block = [&](const Panel &by, const float *sums, long row, long n) {
        if (is_plain && by.width == PANEL) {
            vec bias[REGISTERS] = {};
            for (int k = 0; by.bias && k < REGISTERS; k++) bias[k] = load(by.bias + k * W);
            for (long r = 0; r < n; r++)
                for (int k = 0; k < REGISTERS; k += 2) {
                    const float *from = sums + r * PANEL + k * W;
                    const vec a = load(from) + bias[k], b = load(from + W) + bias[k + 1];
                    U *to = y + (row + r) * by.outputs + by.first + k * W;
                    store(to, a < least ? least : a, b < least ? least : b);
                }
            return;
        }
        for (long r = 0; r < n; r++) {
            vec all[REGISTERS];
            for (int k = 0; k < REGISTERS; k++) all[k] = load(sums + r * PANEL + k * W);
            finish(by, all, after, row + r, y);
        }
    };
    alignas(64) float made[BLOCK * PANEL];
    alignas(64) uint16_t last_x[BLOCK * TILE_INPUTS];
    alignas(64) uint32_t last[TILE * PANEL];
    if (rest) std::fill_n(last_x, BLOCK * TILE_INPUTS, 0), std::fill_n(last, TILE * PANEL, 0);
    Tiles tiles;
    for (long row = 0; row < rows; row += BLOCK) {
        const long n = std::min(BLOCK, rows - row);
        const uint16_t *own = x + row * step;
        for (long r = 0; rest && r < n; r++) std::copy_n(own + r * step + whole, rest, last_x + r * TILE_INPUTS);
        for (long p = 0; p < n_panels; p++) {
            const Panel &by = panels[p];
            float *sums = begins && ends ? made : held + (p * rows + row) * PANEL;
            if (rest) std::copy_n(by.weights + whole / 2 * PANEL, (rest + 1) / 2 * PANEL, last);
            for (long k = 0; k < by.width; k += BLOCK)
                tiles.multiply(own, step, n, by.weights + k, whole, last_x, rest ? last + k : nullptr, sums + k, PANEL,
                               !begins);
            if (ends) finish_block(by, sums, row, n);
        }
    }
}

template <typename T, typename U>
void multiply(const Panel &by, const T *x, U *y, long rows, After after, float *held) {
    switch (rows) {
        case 1: return multiply<1>(by, x, y, after, held);
        case 2: return multiply<2>(by, x, y, after, held);
        case 3: return multiply<3>(by, x, y, after, held);
        case 4: return multiply<4>(by, x, y, after, held);
        case 5: return multiply<5>(by, x, y, after, held);
        default: return multiply<6>(by, x, y, after, held);
    }
}

// Whether products of these numbers are by tiles.
template <typename T>
inline bool by_tiles() {
    return AT_ONCE<T> == 2 && has_tiles();
}

template <typename T>
inline long blocks_of(long rows) {
    const long most = by_tiles<T>() ? BLOCK : MOST;
    return (rows + most - 1) / most;
}

// Some of a product's rows by panels, in blocks: of tiles' rows, else of about as many.
template <typename T, typename U>
void multiply(const Panel *panels, long n_panels, const T *x, U *y, long rows, long from, long to, const After &after,
              float *held = nullptr) {
    const long blocks = blocks_of<T>(rows), step = panels->step, outputs = panels->outputs;
    auto from_row = [&](long row) {
        After own = after;
        if (own.scales) own.scales += row;
        return own;
    };
    if constexpr (AT_ONCE<T> == 2) {
        if (has_tiles()) {
            const long row = from * BLOCK, n = std::min(rows, to * BLOCK) - row;
            return multiply_by_tiles(panels, n_panels, x + row * step, y + row * outputs, n, from_row(row), held);
        }
    }
    const long first = rows * from / std::max(1L, blocks);
    for (long p = 0; p < n_panels; p++)
        for (long block = from; block < to; block++) {
            const long row = rows * block / blocks, so_many = rows * (block + 1) / blocks - row;
            float *sums = held + (p * rows + row - first) * PANEL;
            multiply(panels[p], x + row * step, y + row * outputs, so_many, from_row(row), sums);
        }
}

// A thread's part of a product: the panels that it has, and of each the blocks of rows; up to `most` panels at a time
// where it has all of their rows.
template <typename T, typename Work>
void each_panel(long outputs, long rows, long most, Work work) {
    const long blocks = blocks_of<T>(rows), n = omp_get_num_threads(), me = omp_get_thread_num();
    const long units = (outputs + PANEL - 1) / PANEL * blocks, begin = units * me / n, end = units * (me + 1) / n;
    for (long panel = begin / std::max(1L, blocks), n_panels; begin < end && panel * blocks < end; panel += n_panels) {
        const long from = std::max(0L, begin - panel * blocks), to = std::min(blocks, end - panel * blocks);
        n_panels = from || to < blocks ? 1 : std::min(most, end / blocks - panel);
        work(panel * PANEL, std::min(n_panels * PANEL, outputs - panel * PANEL), from, to);
    }
}

// A thread's part of x W^T + b, and of what is done to that.
template <typename T, typename U>
void multiply(const Matrix &by, const T *x, U *y, long rows, After after = {}) {
    const long steps = (by.inputs + AT_ONCE<T> - 1) / AT_ONCE<T>;
    each_panel<T>(by.outputs, rows, by_tiles<T>() ? MOST_PANELS : 1, [&](long first, long width, long from, long to) {
        Panel panels[MOST_PANELS];
        const long n = (width + PANEL - 1) / PANEL;
        for (long p = 0; p < n; p++, first += PANEL, width -= PANEL) {
            const float *bias = by.bias ? by.bias + first : nullptr;
            const long own = std::min<long>(PANEL, width);
            panels[p] = {by.panels + first * steps, bias, by.inputs, by.inputs, by.outputs, first, own};
        }
        multiply(panels, n, x, y, rows, from, to, after);
    });
}

// The same of a product and its activation or, where there is a gate, of that of the gate times the product.
template <typename T, typename U>
void multiply(const Matrix &by, const Matrix *gate, Activation activation, const T *x, U *y, long rows) {
    multiply(by, x, y, rows, {gate ? NONE : activation});
    if (gate) multiply(*gate, x, y, rows, {activation, true});  // each thread what it has made itself
}

}  // namespace
