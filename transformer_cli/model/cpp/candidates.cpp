// The likeliest of each row's logits, and their log-probabilities. candidates.py calls it.

#include <algorithm>
#include <cmath>

#include "registers.h"

namespace {

constexpr int TOGETHER = 4, MOST = 64;  // registers at a time; of a row
constexpr double NOISE = 1e-6;          // of a sum of probabilities in fp32

// What logits are made of, where they are rounded: rows, and a table that has them for ids, or for `only` of these.
struct Exact {
    const float *x, *table, *bias;
    const int64_t *only;
    long D;

    float logit(long row, int64_t place) const {
        const int64_t id = only ? only[place] : place;
        vec total = vec{};
        for (long d = 0; d < D; d += W) total += load(x + row * D + d) * load(table + id * D + d);
        return bias ? sum(total) + bias[id] : sum(total);
    }
};

// The first n of what is found, best first; of equals the first.
struct Found {
    int n;
    double best[MOST];
    int64_t which[MOST];

    explicit Found(int n) : n(n) {
        for (int k = 0; k < n; k++) best[k] = -INFINITY, which[k] = 0;
    }
    double least() const { return best[n - 1]; }
    void consider(double x, int64_t id) {
        if (!(x > least())) return;
        int k = n - 1;
        for (; k > 0 && x > best[k - 1]; k--) best[k] = best[k - 1], which[k] = which[k - 1];
        best[k] = x, which[k] = id;
    }
};

template <typename T>
void search(Found &found, const T *row, long V, const int64_t *banned, long n_banned, float &top) {
    const auto consider = [&](long v) {
        const float x = one(row + v);
        if (x > found.least() && std::find(banned, banned + n_banned, v) == banned + n_banned) found.consider(x, v);
    };
    vec most = vec{} - INFINITY;
    long v = 0;
    for (; v + TOGETHER * W <= V; v += TOGETHER * W) {
        vec largest = load(row + v);
        for (int part = 1; part < TOGETHER; part++) {
            const vec x = load(row + v + part * W);
            largest = x > largest ? x : largest;
        }
        most = largest > most ? largest : most;
        if (any(largest > vec{} + (float)found.least()))
            for (int k = 0; k < TOGETHER * W; k++) consider(v + k);
    }
    top = -INFINITY;
    for (int lane = 0; lane < W; lane++) top = std::max(top, most[lane]);
    for (; v < V; v++) top = std::max(top, one(row + v)), consider(v);
}

// The logarithm of the sum of all exponentials. Where a number is none, nor is this.
template <typename T>
double summed(const T *row, long V, float top) {
    vec sums = vec{};
    long v = 0;
    for (; v + W <= V; v += W) sums += exponential(load(row + v) - top);
    double total = 0;
    for (int lane = 0; lane < W; lane++) total += sums[lane];
    for (; v < V; v++) total += std::exp(one(row + v) - top);
    return top + std::log(total);
}

// The logarithm of the sum where it has nothing of the old one left but what others hold: large logits are rounded by
// more than 1.
double anew(const double *exacts, int n, double others) {
    const double most = *std::max_element(exacts, exacts + n);
    double total = 0;
    for (int k = 0; k < n; k++) total += std::exp(exacts[k] - most);
    const double own = most + std::log(total), rest = others < NOISE ? -INFINITY : std::log(others);
    return std::max(own, rest) + std::log1p(std::exp(-std::abs(own - rest)));
}

template <typename T>
void likeliest(const T *logits, const int64_t *banned, const Exact &exact, double *logp, int64_t *ids, long rows, long V,
               int n, int n_looked_at, long n_banned, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        const T *row = logits + i * V;
        Found found(n_looked_at), better(n);
        float top;
        search(found, row, V, banned, n_banned, top);
        const double all = summed(row, V, top);
        double exacts[MOST], more = 0, held = 0;  // shares of the sum: what is exact adds, and what these were
        for (int k = 0; k < n_looked_at; k++) {
            const double rounded = found.best[k] - all;
            const bool is_known = exact.x && rounded > -INFINITY;
            const double x = is_known ? rounded + (exact.logit(i, found.which[k]) - found.best[k]) : rounded;
            more += is_known ? std::exp(x) - std::exp(rounded) : 0;
            held += std::exp(rounded);
            better.consider(exacts[k] = x, found.which[k]);
        }
        const double by = more > -0.5 && more < 1 / NOISE ? std::log1p(more) : anew(exacts, n_looked_at, 1 - held);
        const bool is_none = std::isnan(all) || std::isnan(more) || std::isnan(by);
        for (int k = 0; k < n; k++) {
            logp[i * n + k] = is_none ? NAN : std::min(0.0, better.best[k] - by);
            ids[i * n + k] = better.which[k];
        }
    }
}

}  // namespace

#define FOR(T, NAME)                                                                                                   \
    extern "C" void likeliest_##NAME(const T *logits, const int64_t *banned, const float *x, const float *table,       \
                                     const float *bias, const int64_t *only, double *logp, int64_t *ids, int64_t rows, \
                                     int64_t V, int64_t D, int64_t n, int64_t n_looked_at, int64_t n_banned,           \
                                     int threads) {                                                                    \
        likeliest(logits, banned, Exact{x, table, bias, only, D}, logp, ids, rows, V, n, n_looked_at, n_banned,        \
                  threads);                                                                                            \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
