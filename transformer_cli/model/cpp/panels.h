// Linear layers: weights lie in panels, which a thread reads from one end to the other. products.py lays them out. What
// they multiply is in their precision, T; what is made, U, may be in another. Whatever the rows and threads are, sums are
// in the same order.

#pragma once

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "registers.h"

namespace {

constexpr int REGISTERS = 4, PANEL = REGISTERS * W;
constexpr int MOST = W == 16 ? 6 : 3;  // rows whose sums of a panel stay in registers

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
    const bool rectifies = after.activation == RELU, is_simple = rectifies || after.activation == NONE;
    for (int r = 0; r < R; r++) {
        U *to = y + r * by.outputs + by.first;
        const float *scale = after.scales ? after.scales + r : nullptr;
        if (!by.ends)
            for (int k = 0; k < PANEL; k += W) store(held + r * PANEL + k, sums[r][k / W]);
        else if (is_simple && by.width == PANEL)
            for (int k = 0; k < PANEL; k += W)
                finish(sums[r][k / W], by.bias ? by.bias + k : nullptr, rectifies ? RELU : NONE, after.gates, scale,
                       scale ? after.less + by.first + k : nullptr, to + k);
        else
            finish(by, sums[r], after, scale, to);
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

inline long blocks_of(long rows) { return (rows + MOST - 1) / MOST; }

// Some of a product's rows by a panel: blocks of about as many, of so many.
template <typename T, typename U>
void multiply(const Panel &by, const T *x, U *y, long rows, long from, long to, After after, float *held = nullptr) {
    const long blocks = blocks_of(rows), first = rows * from / std::max(1L, blocks);
    for (long block = from; block < to; block++) {
        const long row = rows * block / blocks, so_many = rows * (block + 1) / blocks - row;
        After own = after;
        if (own.scales) own.scales += row;
        multiply(by, x + row * by.step, y + row * by.outputs, so_many, own, held + (row - first) * PANEL);
    }
}

// A thread's part of a product: the panels that it has, and of each the blocks of rows.
template <typename Work>
void each_panel(long outputs, long rows, Work work) {
    const long blocks = blocks_of(rows), n = omp_get_num_threads(), me = omp_get_thread_num();
    const long units = (outputs + PANEL - 1) / PANEL * blocks, begin = units * me / n, end = units * (me + 1) / n;
    for (long panel = begin / std::max(1L, blocks); begin < end && panel * blocks < end; panel++) {
        const long first = panel * PANEL, width = std::min<long>(PANEL, outputs - first);
        work(first, width, std::max(0L, begin - panel * blocks), std::min(blocks, end - panel * blocks));
    }
}

// A thread's part of x W^T + b, and of what is done to that.
template <typename T, typename U>
void multiply(const Matrix &by, const T *x, U *y, long rows, After after = {}) {
    const long steps = (by.inputs + AT_ONCE<T> - 1) / AT_ONCE<T>;
    each_panel(by.outputs, rows, [&](long first, long width, long from, long to) {
        const float *bias = by.bias ? by.bias + first : nullptr;
        const Panel panel{by.panels + first * steps, bias, by.inputs, by.inputs, by.outputs, first, width};
        multiply(panel, x, y, rows, from, to, after);
    });
}

// The same of a product and its activation or, where there is a gate, of that of the gate times the product.
template <typename T, typename U>
void multiply(const Matrix &by, const Matrix *gate, Activation activation, const T *x, U *y, long rows) {
    multiply(by, x, y, rows, {gate ? NONE : activation});
    if (gate) multiply(*gate, x, y, rows, {activation, true});  // each thread what it has made itself
}

}  // namespace
