// (x - mean) / deviation * weight + bias of each row, and its gradient, to which that of x itself is added; of rows that
// are not centred the mean is taken for 0 (RMSNorm). compiled.py calls it.

#include <algorithm>
#include <cmath>

#include "registers.h"

namespace {

constexpr long TOGETHER = 32;  // rows whose part of the gradient of weights is summed first, by whichever thread

template <typename T>
void norm(const T *x, const T *weight, const T *bias, T *output, float *moments, long rows, long D, float eps,
          bool centred, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        const T *row = x + i * D;
        vec total = vec{}, squares = vec{}, left = vec{};
        for (long d = 0; centred && d < D; d += W) total += load(row + d);
        const float mean = sum(total) / D;
        for (long d = 0; d < D; d += W) {
            const vec apart = load(row + d) - mean;
            left += apart;
            squares += apart * apart;
        }
        // Of the mean, which has few digits of it where it is far from 0.
        const float rest = centred ? sum(left) / D : 0;
        const float variance = sum(squares) / D - rest * rest;
        const float scale = variance < INFINITY ? 1 / std::sqrt(variance + eps) : NAN;  // 0 would hide what ran away
        for (long d = 0; d < D; d += W) {
            const vec made = (load(row + d) - mean - rest) * scale * load(weight + d);
            store(output + i * D + d, bias ? made + load(bias + d) : made);
        }
        moments[3 * i] = mean, moments[3 * i + 1] = rest, moments[3 * i + 2] = scale;
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
        for (long i = block * TOGETHER; i < std::min(rows, (block + 1) * TOGETHER); i++) {
            const float mean = moments[3 * i], rest = moments[3 * i + 1], scale = moments[3 * i + 2];
            vec total = vec{}, along = vec{};
            for (long d = 0; d < D; d += W) {
                const vec standard = (load(x + i * D + d) - mean - rest) * scale, own = load(grad + i * D + d);
                const vec weighted = own * load(weight + d);
                total += weighted;
                along += weighted * standard;
                store(of_weight + d, load(of_weight + d) + own * standard);
                store(of_bias + d, load(of_bias + d) + own);
            }
            const float shift = centred ? sum(total) / D : 0, turn = sum(along) / D;
            for (long d = 0; d < D; d += W) {
                const vec standard = (load(x + i * D + d) - mean - rest) * scale;
                const vec weighted = load(grad + i * D + d) * load(weight + d);
                const vec made = (weighted - shift - standard * turn) * scale;
                store(grad_x + i * D + d, beside ? made + load(beside + i * D + d) : made);
            }
        }
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
