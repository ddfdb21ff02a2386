// Label-smoothed cross-entropy of rows of logits, which become its gradients; what else it needs. compiled.py and
// cross_entropy.cpp call it.

#include <algorithm>
#include <cmath>

#include "registers.h"

namespace {

constexpr float EXACT_FROM = 40;  // log(1 + e^x) is x from there on

// make(numbers) of each register of a row, the last with others behind them.
template <typename T, typename F>
inline void each(const T *row, long width, float others, F make) {
    long d = 0;
    for (; d + W <= width; d += W) make(d, load(row + d));
    if (d == width) return;
    float last[W];
    std::fill_n(last, W, others);
    for (long x = d; x < width; x++) last[x - d] = one(row + x);
    make(d, load(last));
}

// As training/loss.py has it: s times (softmax - what a target gets beyond its even share), s the sum of exponentials,
// and what to divide it by: 1 / s, 0 of padding.
template <typename T>
void smoothed(T *logits, const int64_t *targets, const float *even, float *losses, float *shares, float smoothing,
              long rows, long V, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        T *row = logits + i * V, *target = row + targets[i];
        const float own = one(target);
        vec most = vec{} - INFINITY, total = vec{};
        each(row, V, -INFINITY, [&](long, vec x) { most = x > most ? x : most; });
        float off = -INFINITY;
        for (int x = 0; x < W; x++) off = std::max(off, most[x]);
        put(target, -INFINITY);  // the others alone: the model may be so sure of it that it would hide them
        each(row, V, -INFINITY, [&](long d, vec x) {
            const vec e = x == -INFINITY ? vec{} : exponential(x - off);
            total += e;
            if (d + W <= V) {
                store(row + d, e);
            } else {
                for (long y = d; y < V; y++) put(row + y, e[y - d]);
            }
        });
        const float others = sum(total), e = std::exp(own - off), apart = std::log(others) - (own - off);
        const float loss = apart > EXACT_FROM ? apart : std::log1p(std::exp(apart));
        const bool is_real = targets[i] != 0;
        put(target, smoothing * e - (1 - smoothing) * others);
        losses[i] = is_real ? loss + smoothing * own - even[i] : 0;
        shares[i] = is_real ? 1 / (e + others) : 0;
    }
}

// sum = x, or sum + x where it adds, and less the same of each row where there is that.
template <typename T>
void add(float *total, const T *x, const float *less, long rows, long D, int adds, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        float *to = total + i * D;
        const T *row = x + i * D;
        long d = 0;
        for (; d + W <= D; d += W) {
            vec made = load(row + d);
            if (adds) made += load(to + d);
            if (less) made -= load(less + d);
            store(to + d, made);
        }
        for (; d < D; d++) to[d] = (adds ? to[d] : 0) + one(row + d) - (less ? less[d] : 0);
    }
}

constexpr long TOGETHER = 256;  // rows

// share times the sum of what all blocks have of each column.
void sum_blocks(const float *room, long blocks, long D, float share, float *sums) {
    std::fill_n(sums, D, 0.0f);
    for (long block = 0; block < blocks; block++)
        for (long d = 0; d < D; d++) sums[d] += room[block * D + d];
    for (long d = 0; d < D; d++) sums[d] *= share;
}

// x in bf16, and the sum of each of its columns.
void narrow(const float *x, uint16_t *made, float *sums, float *room, long rows, long D, int threads) {
    const long blocks = (rows + TOGETHER - 1) / TOGETHER;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long block = 0; block < blocks; block++) {
        float *total = room + block * D;
        std::fill_n(total, D, 0.0f);
        for (long i = block * TOGETHER; i < std::min(rows, (block + 1) * TOGETHER); i++) {
            const float *row = x + i * D;
            long d = 0;
            for (; d + W <= D; d += W) {
                const vec own = load(row + d);
                store(made + i * D + d, own), store(total + d, load(total + d) + own);
            }
            for (; d < D; d++) put(made + i * D + d, row[d]), total[d] += row[d];
        }
    }
    sum_blocks(room, blocks, D, 1, sums);
}

// share times x by, of each row of x; and share times the sum of the rows that have a target.
template <typename T>
void even(const T *x, const float *by, const int64_t *targets, float share, float *made, float *sums, float *room,
          long rows, long D, int threads) {
    const long blocks = (rows + TOGETHER - 1) / TOGETHER;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long block = 0; block < blocks; block++) {
        float *total = room + block * D;
        std::fill_n(total, D, 0.0f);
        for (long i = block * TOGETHER; i < std::min(rows, (block + 1) * TOGETHER); i++) {
            const T *row = x + i * D;
            const bool is_real = targets[i] != 0;
            vec product = vec{};
            float rest = 0;
            long d = 0;
            for (; d + W <= D; d += W) {
                const vec own = load(row + d);
                product += own * load(by + d);
                if (is_real) store(total + d, load(total + d) + own);
            }
            for (; d < D; d++) {
                rest += one(row + d) * by[d];
                if (is_real) total[d] += one(row + d);
            }
            made[i] = share * (sum(product) + rest);
        }
    }
    sum_blocks(room, blocks, D, share, sums);
}

}  // namespace

extern "C" int64_t narrow_room(int64_t rows, int64_t width) { return (rows + TOGETHER - 1) / TOGETHER * width; }

extern "C" void narrow_bf16(const float *x, uint16_t *made, float *sums, float *room, int64_t rows, int64_t width,
                            int threads) {
    narrow(x, made, sums, room, rows, width, threads);
}

#define FOR(T, NAME)                                                                                                   \
    extern "C" void smoothed_##NAME(T *logits, const int64_t *targets, const float *even, float *losses,               \
                                    float *shares, float smoothing, int64_t rows, int64_t width, int threads) {        \
        smoothed(logits, targets, even, losses, shares, smoothing, rows, width, threads);                              \
    }                                                                                                                  \
    extern "C" void add_##NAME(float *total, const T *x, const float *less, int64_t rows, int64_t width, int adds,     \
                               int threads) {                                                                          \
        add(total, x, less, rows, width, adds, threads);                                                               \
    }                                                                                                                  \
    extern "C" void even_##NAME(const T *x, const float *by, const int64_t *targets, float share, float *made,         \
                                float *sums, float *room, int64_t rows, int64_t width, int threads) {                  \
        even(x, by, targets, share, made, sums, room, rows, width, threads);                                           \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
