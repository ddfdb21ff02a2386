// (x - mean) / deviation * weight + bias of each row, and its gradient, to which that of x itself is added; of rows that
// are not centred the mean is taken for 0 (RMSNorm). compiled.py calls it.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "registers.h"

namespace {

constexpr long TOGETHER = 32;  // rows whose part of the gradient of weights is summed first, by whichever thread
template <typename T>
constexpr int ROWS = sizeof(T) == sizeof(uint16_t) ? 4 : 1;  // for which weights are read once; fewer of wide numbers

// make(n, i) of n rows from i on: as many as are made at a time, and the last ones one by one.
template <int R, typename F>
inline void by_rows(long begin, long end, F make) {
    long i = begin;
    for (; i + R <= end; i += R) make(std::integral_constant<int, R>(), i);
    for (; i < end; i++) make(std::integral_constant<int, 1>(), i);
}

template <int R, typename T>
void norm(const T *x, const T *weight, const T *bias, T *output, float *moments, long D, float eps, bool centred) {
    vec total[R] = {}, squares[R] = {}, left[R] = {};
    float mean[R], rest[R], scale[R];
    for (long d = 0; centred && d < D; d += W)
        for (int r = 0; r < R; r++) total[r] += load(x + r * D + d);
    for (int r = 0; r < R; r++) mean[r] = sum(total[r]) / D;
    for (long d = 0; d < D; d += W)
        for (int r = 0; r < R; r++) {
            const vec apart = load(x + r * D + d) - mean[r];
            left[r] += apart;
            squares[r] += apart * apart;
        }
    for (int r = 0; r < R; r++) {
        // Of the mean, which has few digits of it where it is far from 0.
        rest[r] = centred ? sum(left[r]) / D : 0;
        const float variance = sum(squares[r]) / D - rest[r] * rest[r];
        scale[r] = variance < INFINITY ? 1 / std::sqrt(variance + eps) : NAN;  // 0 would hide what ran away
        moments[3 * r] = mean[r], moments[3 * r + 1] = rest[r], moments[3 * r + 2] = scale[r];
    }
    for (long d = 0; d < D; d += W) {
        const vec by = load(weight + d), added = bias ? load(bias + d) : vec{};
        for (int r = 0; r < R; r++) {
            const vec made = (load(x + r * D + d) - mean[r] - rest[r]) * scale[r] * by;
            store(output + r * D + d, bias ? made + added : made);
        }
    }
}

template <typename T>
void norm(const T *x, const T *weight, const T *bias, T *output, float *moments, long rows, long D, float eps,
          bool centred, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long begin = 0; begin < rows; begin += ROWS<T>)
        by_rows<ROWS<T>>(begin, std::min(rows, begin + ROWS<T>), [&](auto n, long i) {
            norm<n>(x + i * D, weight, bias, output + i * D, moments + 3 * i, D, eps, centred);
        });
}

template <int R, typename T>
void norm_back(const T *x, const T *weight, const float *moments, const T *grad, const T *beside, T *grad_x,
               float *of_weight, float *of_bias, long D, bool centred) {
    vec total[R] = {}, along[R] = {};
    float mean[R], rest[R], scale[R], shift[R], turn[R];
    for (int r = 0; r < R; r++) mean[r] = moments[3 * r], rest[r] = moments[3 * r + 1], scale[r] = moments[3 * r + 2];
    auto standard = [&](int r, long d) { return (load(x + r * D + d) - mean[r] - rest[r]) * scale[r]; };
    for (long d = 0; d < D; d += W) {
        const vec by = load(weight + d);
        vec weights = load(of_weight + d), biases = load(of_bias + d);
        for (int r = 0; r < R; r++) {
            const vec made = standard(r, d), own = load(grad + r * D + d), weighted = own * by;
            total[r] += weighted;
            along[r] += weighted * made;
            weights += own * made;
            biases += own;
        }
        store(of_weight + d, weights), store(of_bias + d, biases);
    }
    for (int r = 0; r < R; r++) shift[r] = centred ? sum(total[r]) / D : 0, turn[r] = sum(along[r]) / D;
    for (long d = 0; d < D; d += W) {
        const vec by = load(weight + d);
        for (int r = 0; r < R; r++) {
            const vec weighted = load(grad + r * D + d) * by;
            const vec made = (weighted - shift[r] - standard(r, d) * turn[r]) * scale[r];
            store(grad_x + r * D + d, beside ? made + load(beside + r * D + d) : made);
        }
    }
}

template <typename T>
void norm_back(const T *x, const T *weight, const float *moments, const T *grad, const T *beside, T *grad_x,
               T *grad_weight, T *grad_bias, float *room, long rows, long D, bool centred, int threads) {
    const long blocks = (rows + TOGETHER - 1) / TOGETHER;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long block = 0; block < blocks; block++) {
        float *of_weight = room + block * 2 * D, *of_bias = of_weight + D;
        std::fill_n(of_weight, 2 * D, 0.0f);
        by_rows<ROWS<T>>(block * TOGETHER, std::min(rows, (block + 1) * TOGETHER), [&](auto n, long i) {
            norm_back<n>(x + i * D, weight, moments + 3 * i, grad + i * D, beside ? beside + i * D : nullptr,
                         grad_x + i * D, of_weight, of_bias, D, centred);
        });
    }
    for (long d = 0; d < D; d += W) {
        vec of_weight = vec{}, of_bias = vec{};
        for (long block = 0; block < blocks; block++) {
            of_weight += load(room + block * 2 * D + d);
            of_bias += load(room + (block * 2 + 1) * D + d);
        }
        store(grad_weight + d, of_weight);
        store(grad_bias + d, of_bias);
    }
}

}  // namespace

extern "C" int64_t norm_room(int64_t rows, int64_t width) { return (rows + TOGETHER - 1) / TOGETHER * 2 * width; }

#define FOR(T, NAME)                                                                                                   \
    extern "C" void norm_##NAME(const T *x, const T *weight, const T *bias, T *output, float *moments,                 \
                                int64_t rows, int64_t width, float eps, int centred, int threads) {                    \
        norm(x, weight, bias, output, moments, rows, width, eps, centred, threads);                                    \
    }                                                                                                                  \
    extern "C" void norm_back_##NAME(const T *x, const T *weight, const float *moments, const T *grad,                 \
                                     const T *beside, T *grad_x, T *grad_weight, T *grad_bias, float *room,            \
                                     int64_t rows, int64_t width, int centred, int threads) {                          \
        norm_back(x, weight, moments, grad, beside, grad_x, grad_weight, grad_bias, room, rows, width, centred,        \
                  threads);                                                                                            \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
