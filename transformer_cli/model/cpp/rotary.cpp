// Heads turned by the positions of their rows (Su et al. 2021, RoFormer, eq. 34), or back. compiled.py calls it.

#include "registers.h"

namespace {

// waves: of each position K cosines, each twice, and K sines, each below 0 and above.
template <typename T>
void rotate(const T *x, long step, T *to, long to_step, const float *waves, const int64_t *positions, long rows,
            long heads, long K, bool back, int threads) {
    const float way = back ? -1 : 1;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) {
        const float *own = waves + positions[i] * 2 * K;
        for (long head = 0; head < heads; head++)
            for (long k = 0; k < K; k += W)
                store(to + i * to_step + head * K + k, turned(load(x + i * step + head * K + k), own + k, K, way));
    }
}

}  // namespace

#define FOR(T, NAME)                                                                                                   \
    extern "C" void rotate_##NAME(const T *x, int64_t step, T *to, int64_t to_step, const float *waves,                \
                                  const int64_t *positions, int64_t rows, int64_t heads, int64_t width, int back,      \
                                  int threads) {                                                                       \
        rotate(x, step, to, to_step, waves, positions, rows, heads, width, back, threads);                             \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
