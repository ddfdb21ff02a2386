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

// Of a row of logits: the largest, and of e^(x - that) the target's own and the sum of the others.
struct Chances {
    float most, own, others;

    float sum() const { return own + others; }
    float log() const { return most + std::log(sum()); }
};

// take(where, exponentials) of all but the target, which is 0 there.
template <typename T, typename F>
inline Chances chances(T *row, long target, long V, F take) {
    const float own = one(row + target);
    vec most = vec{} - INFINITY, total = vec{};
    each(row, V, -INFINITY, [&](long, vec x) { most = x > most ? x : most; });
    float off = -INFINITY;
    for (int x = 0; x < W; x++) off = std::max(off, most[x]);
    put(row + target, -INFINITY);  // the others alone: the model may be so sure of it that it would hide them
    each(row, V, -INFINITY, [&](long d, vec x) {
        const vec e = x == -INFINITY ? vec{} : exponential(x - off);
        total += e;
        take(d, e);
    });
    put(row + target, own);
    return {off, std::exp(own - off), sum(total)};
}

// The loss of a target whose logit is own, but for the even share of all logits.
inline float loss_of(const Chances &found, float own, float smoothing) {
    const float apart = std::log(found.others) - (own - found.most);
    return (apart > EXACT_FROM ? apart : std::log1p(std::exp(apart))) + smoothing * own;
}

// The gradient of its logit, but for its even share, times the sum of exponentials.
inline float own_gradient(const Chances &found, float smoothing) {
    return smoothing * found.own - (1 - smoothing) * found.others;
}

template <typename T>
inline void write(T *row, long d, vec x, long V) {
    if (d + W <= V) {
        store(row + d, x);
    } else {
        for (long y = d; y < V; y++) put(row + y, x[y - d]);
    }
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
        const Chances found = chances(row, targets[i], V, [&](long d, vec e) { write(row, d, e, V); });
        const bool is_real = targets[i] != 0;
        put(target, own_gradient(found, smoothing));
        losses[i] = is_real ? loss_of(found, own, smoothing) - even[i] : 0;
        shares[i] = is_real ? 1 / found.sum() : 0;
    }
}

constexpr float NEVER = -1e30;  // the logarithm of a chance

// make(where, p, q, log p - log q) of two rows of logits.
template <typename T, typename F>
inline void each_of_two(const T *p, const T *q, float log_p, float log_q, long V, F make) {
    float last[2][W];
    std::fill_n(*last, 2 * W, NEVER);
    for (long d = V / W * W; d < V; d++) last[0][d % W] = one(p + d), last[1][d % W] = one(q + d);
    for (long d = 0; d < V; d += W) {
        const bool is_whole = d + W <= V;
        const vec x = (is_whole ? load(p + d) : load(last[0])) - log_p;
        const vec y = (is_whole ? load(q + d) : load(last[1])) - log_q;
        make(d, exponential(x), exponential(y), x - y);
    }
}

// Of two predictions p and q of each target, those of q `rows` behind: the losses, of which `apart` times KL(p || q) is
// a part, or KL(q || p) of q's; and the gradients themselves, but for the even share. With d = log p - log q the
// gradient of both divergences is p (d - KL(p || q)) + p - q for the logits of p. None of the targets is padding.
template <typename T>
void compared(T *logits, const int64_t *targets, const float *even, const float *even_q, float *losses, float smoothing,
              float apart, long rows, long V, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        const long target = targets[i], j = rows + i;
        T *p = logits + i * V, *q = logits + j * V;
        const auto nowhere = [](long, vec) {};
        const Chances of_p = chances(p, target, V, nowhere), of_q = chances(q, target, V, nowhere);
        const float own_p = one(p + target), own_q = one(q + target), log_p = of_p.log(), log_q = of_q.log();
        vec sum_p = vec{}, sum_q = vec{};
        each_of_two(p, q, log_p, log_q, V, [&](long, vec p, vec q, vec d) { sum_p += p * d, sum_q -= q * d; });
        const float p_from_q = sum(sum_p), q_from_p = sum(sum_q);
        each_of_two(p, q, log_p, log_q, V, [&](long at, vec x, vec y, vec d) {
            write(p, at, x + apart * (x * (d - p_from_q) + x - y), V);
            write(q, at, y + apart * (y * (-d - q_from_p) + y - x), V);
        });
        const float x = std::exp(own_p - log_p), y = std::exp(own_q - log_q), d = own_p - log_p - (own_q - log_q);
        put(p + target, own_gradient(of_p, smoothing) / of_p.sum() + apart * (x * (d - p_from_q) + x - y));
        put(q + target, own_gradient(of_q, smoothing) / of_q.sum() + apart * (y * (-d - q_from_p) + y - x));
        losses[i] = loss_of(of_p, own_p, smoothing) + apart * p_from_q - even[i];
        losses[j] = loss_of(of_q, own_q, smoothing) + apart * q_from_p - even_q[i];
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
    extern "C" void compared_##NAME(T *logits, const int64_t *targets, const float *even, const float *even_q,         \
                                    float *losses, float smoothing, float apart, int64_t rows, int64_t width,          \
                                    int threads) {                                                                     \
        compared(logits, targets, even, even_q, losses, smoothing, apart, rows, width, threads);                       \
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
