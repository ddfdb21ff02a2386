// The likeliest of each row's logits, and their log-probabilities. candidates.py calls it.

#include <cmath>

#include "registers.h"

namespace {

constexpr int TOGETHER = 4, MOST = 64;  // registers at a time; of a row

// Best first; of equals the first. Where a row has a number that is none, all it finds are none.
template <typename T>
void likeliest(const T *logits, const int64_t *banned, double *logp, int64_t *ids, long rows, long V, int n,
               long n_banned, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        const T *row = logits + i * V;
        float best[MOST];
        int64_t *which = ids + i * n;
        for (int k = 0; k < n; k++) best[k] = -INFINITY, which[k] = 0;
        vec most = vec{} - INFINITY;
        auto consider = [&](float x, long v) {
            if (!(x > best[n - 1])) return;
            for (long b = 0; b < n_banned; b++)
                if (banned[b] == v) return;
            int k = n - 1;
            for (; k > 0 && x > best[k - 1]; k--) best[k] = best[k - 1], which[k] = which[k - 1];
            best[k] = x, which[k] = v;
        };
        long v = 0;
        for (; v + TOGETHER * W <= V; v += TOGETHER * W) {
            vec largest = load(row + v);
            for (int part = 1; part < TOGETHER; part++) {
                const vec x = load(row + v + part * W);
                largest = x > largest ? x : largest;
            }
            most = largest > most ? largest : most;
            if (any(largest > vec{} + best[n - 1]))
                for (int k = 0; k < TOGETHER * W; k++) consider(one(row + v + k), v + k);
        }
        float top = -INFINITY;
        for (int lane = 0; lane < W; lane++) top = most[lane] > top ? most[lane] : top;
        for (long rest = v; rest < V; rest++) {
            const float x = one(row + rest);
            top = x > top ? x : top;
            consider(x, rest);
        }
        vec sums = vec{};
        for (v = 0; v + W <= V; v += W) sums += exponential(load(row + v) - top);
        double total = 0;
        for (int lane = 0; lane < W; lane++) total += sums[lane];
        for (; v < V; v++) total += std::exp(one(row + v) - top);
        const double all = top + std::log(total);
        for (int k = 0; k < n; k++) logp[i * n + k] = best[k] - all;
    }
}

}  // namespace

#define FOR(T, NAME)                                                                                                   \
    extern "C" void likeliest_##NAME(const T *logits, const int64_t *banned, double *logp, int64_t *ids, int64_t rows,  \
                                     int64_t width, int64_t n, int64_t n_banned, int threads) {                        \
        likeliest(logits, banned, logp, ids, rows, width, n, n_banned, threads);                                       \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
