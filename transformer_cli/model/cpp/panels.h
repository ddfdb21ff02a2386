// Linear layers of few rows: weights lie in panels, which a thread reads from one end to the other. products.py lays them
// out. Whatever the rows and threads are, sums are in the same order.

#pragma once

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "registers.h"

namespace {

constexpr int REGISTERS = 4, PANEL = REGISTERS * W, FEW = 8;

enum Activation : int64_t { NONE, RELU, SILU, GELU };

// What is done to a product.
struct After {
    Activation activation = NONE;
    bool gates = false;  // whether it is multiplied, then, by what is where it goes
};

inline vec silu(vec x) {  // x / (1 + e^-x)
    const vec e = exponential(x < 0 ? x : -x);
    return x * (x < 0 ? e : vec{} + 1) / (1 + e);
}

// Of a panel. Apart from what it is called by, which is then as fast as without.
[[gnu::noinline]] void activate(Activation by, float *x) {
    for (int k = 0; k < PANEL && (by == RELU || by == SILU); k += W) {
        const vec own = load(x + k);
        store(x + k, by == SILU ? silu(own) : own < 0 ? vec{} : own);
    }
    for (int k = 0; k < PANEL && by == GELU; k++) x[k] = x[k] * 0.5f * (1 + std::erf(x[k] * 0.70710678f));
}

// W^T in panels of so many columns, filled up with zeros: (panels, inputs, PANEL).
struct Matrix {
    const void *panels;  // in bf16 where it is rounded
    const float *bias;
    int64_t inputs, outputs, is_rounded;
};

// N registers of a panel, of R rows.
template <int R, int N, typename T>
inline void multiply(const Matrix &by, const T *weights, const float *x, float *made) {
    vec sums[R][N];
    for (auto &row : sums)
        for (vec &sum : row) sum = vec{};
    for (long i = 0; i < by.inputs; i++, weights += PANEL)
        for (int k = 0; k < N; k++) {
            const vec weight = load(weights + k * W);
            for (int r = 0; r < R; r++) sums[r][k] += x[r * by.inputs + i] * weight;
        }
    for (int r = 0; r < R; r++)
        for (int k = 0; k < N; k++) store(made + r * PANEL + k * W, sums[r][k]);
}

template <int R, typename T>
inline void multiply(const Matrix &by, const float *x, float *y, long panel, After after) {
    constexpr int N = R * 4 <= FREE ? 4 : R * 2 <= FREE ? 2 : 1;  // of REGISTERS
    float made[R * PANEL];
    for (int k = 0; k < REGISTERS; k += N)
        multiply<R, N>(by, (const T *)by.panels + panel * by.inputs * PANEL + k * W, x, made + k * W);
    const long first = panel * PANEL, width = std::min<long>(PANEL, by.outputs - first);
    for (int r = 0; r < R; r++) {
        float *own = made + r * PANEL, *to = y + r * by.outputs + first;
        if (by.bias)
            for (long o = 0; o < width; o++) own[o] += by.bias[first + o];
        if (after.activation != NONE) activate(after.activation, own);
        if (after.gates)
            for (long o = 0; o < width; o++) own[o] *= to[o];
        std::copy_n(own, width, to);
    }
}

template <typename T>
void multiply(const Matrix &by, const float *x, float *y, long rows, long panel, After after) {
    switch (rows) {
        case 1: return multiply<1, T>(by, x, y, panel, after);
        case 2: return multiply<2, T>(by, x, y, panel, after);
        case 3: return multiply<3, T>(by, x, y, panel, after);
        case 4: return multiply<4, T>(by, x, y, panel, after);
        case 5: return multiply<5, T>(by, x, y, panel, after);
        case 6: return multiply<6, T>(by, x, y, panel, after);
        case 7: return multiply<7, T>(by, x, y, panel, after);
        default: return multiply<8, T>(by, x, y, panel, after);
    }
}

// A thread's part of x W^T + b, and of what is done to that.
void multiply(const Matrix &by, const float *x, float *y, long rows, After after = {}) {
    const long panels = (by.outputs + PANEL - 1) / PANEL, n = omp_get_num_threads(), me = omp_get_thread_num();
    for (long panel = panels * me / n; panel < panels * (me + 1) / n; panel++)
        for (long row = 0; row < rows; row += FEW) {
            const long so_many = std::min<long>(FEW, rows - row);
            const float *from = x + row * by.inputs;
            float *to = y + row * by.outputs;
            if (by.is_rounded)
                multiply<uint16_t>(by, from, to, so_many, panel, after);
            else
                multiply<float>(by, from, to, so_many, panel, after);
        }
}

// The same of a product and its activation or, where there is a gate, of that of the gate times the product.
void multiply(const Matrix &by, const Matrix *gate, Activation activation, const float *x, float *y, long rows) {
    multiply(by, x, y, rows, {gate ? NONE : activation});
    if (gate) multiply(*gate, x, y, rows, {activation, true});  // each thread what it has made itself
}

}  // namespace
