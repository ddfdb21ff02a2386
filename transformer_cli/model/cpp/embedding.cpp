// Vectors of pieces with those of their positions, and the gradients of the pieces' own. compiled.py calls it.

#include <algorithm>

#include <omp.h>

#include "registers.h"

namespace {

// scale times the vector of each id and, where there are such, the one at its position.
template <typename T>
void embed(const float *table, const int64_t *ids, const float *places, const int64_t *positions, T *made, float scale,
           long rows, long D, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++)
        for (long d = 0; d < D; d += W) {
            vec x = load(table + ids[i] * D + d) * scale;
            if (places) x += load(places + positions[i] * D + d);
            store(made + i * D + d, x);
        }
}

// The sum over the rows of each id, to what is there where it adds; padding, which is 0, learns nothing. A thread has
// some of the features, so that the order of sums is that of the rows.
template <typename T>
void embed_back(const T *grad, const int64_t *ids, float *sums, float scale, long rows, long D, long V, bool adds,
                int threads) {
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long v = 0; v < (adds ? 0 : V); v++) std::fill_n(sums + v * D, D, 0.0f);
        const long n = omp_get_num_threads(), me = omp_get_thread_num(), registers = D / W;
        const long first = registers * me / n * W, end = registers * (me + 1) / n * W;
        for (long i = 0; i < rows; i++)
            for (long d = first; ids[i] && d < end; d += W) {
                float *sum = sums + ids[i] * D + d;
                store(sum, load(sum) + scale * load(grad + i * D + d));
            }
    }
}

}  // namespace

#define FOR(T, NAME)                                                                                                   \
    extern "C" void embed_##NAME(const float *table, const int64_t *ids, const float *places,                          \
                                 const int64_t *positions, T *made, float scale, int64_t rows, int64_t width,          \
                                 int threads) {                                                                        \
        embed(table, ids, places, positions, made, scale, rows, width, threads);                                       \
    }                                                                                                                  \
    extern "C" void embed_back_##NAME(const T *grad, const int64_t *ids, float *sums, float scale, int64_t rows,       \
                                      int64_t width, int64_t vocabulary, int adds, int threads) {                      \
        embed_back(grad, ids, sums, scale, rows, width, vocabulary, adds, threads);                                    \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
