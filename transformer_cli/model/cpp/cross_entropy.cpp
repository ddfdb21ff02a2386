// The loss of what a projection makes, and all its gradients, by one call: the functions of the other files one after
// the other, with the bits that they have one by one. training/loss.py calls it, and tells what is computed.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "registers.h"

typedef uint16_t bf16;

extern "C" {
int64_t narrow_room(int64_t rows, int64_t width);
int64_t product_room(int64_t rows, int64_t inputs);
int64_t panel_width();
void narrow_bf16(const float *x, bf16 *made, float *sums, float *room, int64_t rows, int64_t width, int threads);
void even_bf16(const bf16 *x, const float *by, const int64_t *targets, float share, float *made, float *sums,
               float *room, int64_t rows, int64_t width, int threads);
void smoothed_bf16(bf16 *logits, const int64_t *targets, const float *even, float *losses, float *shares,
                   float smoothing, int64_t rows, int64_t width, int threads);
void compared_bf16(bf16 *logits, const int64_t *targets, const float *even, const float *even_q, float *losses,
                   float smoothing, float apart, int64_t rows, int64_t width, int threads);
void turn_bf16(const bf16 *x, const float *scales, bf16 *turned, int64_t rows, int64_t width, int threads);
void multiply_bf16(const bf16 *a, const bf16 *b, const bf16 *bias, const float *scales, const float *less, bf16 *made,
                   uint32_t *room, int64_t rows, int64_t inputs, int64_t outputs, int by_rows, int rectifies,
                   int threads);
void learn_bf16(const bf16 *a, const bf16 *b, const float *less, float *made, uint32_t *room, int64_t rows,
                int64_t inputs, int64_t outputs, int adds, int threads);
}

namespace {

// Where in the room something lies, in numbers of fp32.
struct Places {
    int64_t end = 0, logits, turned, rounded, even, shares, losses, real, less, found, work;

    Places(int64_t rows, int64_t width, int64_t V, int64_t piece, int64_t readings, int64_t threads) {
        logits = take((readings * piece * V + 1) / 2), turned = take((piece * width + 1) / 2);
        rounded = take((piece + 1) / 2);
        even = take(rows), shares = take(readings * piece), losses = take(readings * piece);
        real = take(width), less = take(width), found = take(V);
        const int64_t forward = product_room(piece, std::max(width, V));
        const int64_t product = std::max(forward, product_room(width, piece) + width * panel_width());
        work = take(std::max(threads * product, narrow_room(std::max(rows, V), width)));
    }

    int64_t take(int64_t n) {
        const int64_t begin = end;
        end += (n + W - 1) / W * W;
        return begin;
    }
};

}  // namespace

extern "C" int64_t cross_entropy_room(int64_t rows, int64_t width, int64_t V, int64_t piece, int64_t readings,
                                      int64_t threads) {
    return Places(rows, width, V, piece, readings, threads).end;
}

// table: what weight and sums, of its columns, are made of here, if there is one. of_bias: an even share of the sum of
// the bias, if there is one. A gradient that is none is not made, and without that of x no other. readings: 1, or 2
// of the same targets, one behind the other, which are to agree. piece: rows of logits of one at a time. The losses are
// summed row by row, in fp64.
extern "C" void cross_entropy_bf16(const bf16 *x, const float *table, bf16 *weight, float *sums, const bf16 *bias,
                                   const float *of_bias, const int64_t *targets, bf16 *of_x, float *of_weight,
                                   float *of_biases, float *loss, float *room, double smoothing, double apart,
                                   int64_t rows, int64_t width, int64_t V, int64_t piece, int64_t readings,
                                   int is_table, int threads) {
    const Places at(rows, width, V, piece, readings, threads);
    bf16 *logits = (bf16 *)(room + at.logits), *turned = (bf16 *)(room + at.turned);
    bf16 *rounded = (bf16 *)(room + at.rounded);
    float *even = room + at.even, *shares = room + at.shares, *losses = room + at.losses;
    float *real = room + at.real, *less = room + at.less, *found = room + at.found;
    uint32_t *work = (uint32_t *)(room + at.work);
    const float share = smoothing / V;
    const int64_t each = rows / readings;
    double total = 0;
    if (table) narrow_bf16(table, weight, sums, (float *)work, V, width, threads);
    even_bf16(x, sums, targets, share, even, real, (float *)work, rows, width, threads);
    for (int64_t i = 0; of_bias && i < rows; i++) even[i] += *of_bias;
    for (int64_t d = 0; d < width; d++) less[d] = share * sums[d];
    for (int64_t start = 0; start < each; start += piece) {
        const int64_t n = std::min(piece, each - start), *own = targets + start;
        for (int64_t k = 0; k < readings; k++)
            multiply_bf16(x + (k * each + start) * width, weight, bias, nullptr, nullptr, logits + k * n * V, work, n,
                          width, V, true, false, threads);
        if (readings == 1) {
            smoothed_bf16(logits, own, even + start, losses, shares, smoothing, n, V, threads);
        } else {
            compared_bf16(logits, own, even + start, even + each + start, losses, smoothing, apart, n, V, threads);
            std::fill_n(shares, readings * n, 1.0f);
        }
        total = std::accumulate(losses, losses + readings * n, total);
        for (int64_t k = 0; of_x && k < readings; k++) {
            const bool adds = start || k;
            const int64_t first = (k * each + start) * width;
            const bf16 *made = logits + k * n * V;
            const float *scales = shares + k * n;
            multiply_bf16(made, weight, nullptr, scales, less, of_x + first, work, n, V, width, false, false, threads);
            if (of_weight) {
                turn_bf16(x + first, scales, turned, n, width, threads);
                learn_bf16(turned, made, adds ? nullptr : real, of_weight, work, width, n, V, adds, threads);
            }
            if (of_biases) {
                const float even_part = share * (n - std::count(own, own + n, 0));
                for (int64_t i = 0; i < n; i++) put(rounded + i, scales[i]);
                learn_bf16(rounded, made, &even_part, found, work, 1, n, V, false, threads);
                for (int64_t v = 0; v < V; v++) of_biases[v] = (adds ? of_biases[v] : 0) + found[v];
            }
        }
    }
    if (of_weight && is_table) std::fill_n(of_weight, width, 0.0f);
    *loss = total;
}
