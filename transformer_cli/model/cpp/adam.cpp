// Adam's update of all weights in one pass over memory, and the length of all gradients. training/optimizers.py calls it,
// by compiled.py.

#include <algorithm>
#include <cmath>
#include <vector>

#include "registers.h"

namespace {

constexpr long PIECE = 16384;  // weights that a thread takes at a time

template <typename M>
struct Weights {  // as training/optimizers.py lays them out; without a gradient, an average or a copy where that is null
    const float *grad;
    const uint16_t *narrow;  // the gradient where it is in bf16
    float *own;
    M *mean, *square;  // in fp32 or bf16
    float *steps, *average;
    uint16_t *copy;
    int64_t n;
};

struct Piece {
    long of, start, n;
};

template <typename M>
std::vector<Piece> pieces(const Weights<M> *weights, long count) {
    std::vector<Piece> found;
    for (long of = 0; of < count; of++)
        for (long start = 0; start < weights[of].n; start += PIECE)
            found.push_back({of, start, std::min(PIECE, (long)weights[of].n - start)});
    return found;
}

// make(where) of as many numbers as a register holds, the last ones in a place of their own.
template <typename M, typename F>
inline void each(Weights<M> at, long n, F make) {
    long i = 0;
    for (; i + W <= n; i += W) make(at, i);
    if (i == n) return;
    float own[W] = {}, grad[W] = {}, average[W] = {};
    M mean[W] = {}, square[W] = {};
    uint16_t narrow[W] = {}, copy[W] = {};
    const long left = n - i;
    const bool learns = at.grad || at.narrow;
    Weights<M> last{at.grad ? grad : nullptr, at.narrow ? narrow : nullptr, own, mean, square, nullptr,
                    at.average ? average : nullptr, at.copy ? copy : nullptr, left};
    std::copy_n(at.own + i, left, own);
    if (at.grad) std::copy_n(at.grad + i, left, grad);
    if (at.narrow) std::copy_n(at.narrow + i, left, narrow);
    if (learns) std::copy_n(at.mean + i, left, mean), std::copy_n(at.square + i, left, square);
    if (at.average) std::copy_n(at.average + i, left, average);
    make(last, 0);
    std::copy_n(own, left, at.own + i);
    if (learns) std::copy_n(mean, left, at.mean + i), std::copy_n(square, left, at.square + i);
    if (at.average) std::copy_n(average, left, at.average + i);
    if (at.copy) std::copy_n(copy, left, at.copy + i);
}

inline vec root(vec x) {
    for (int i = 0; i < W; i++) x[i] = std::sqrt(x[i]);
    return x;
}

inline uint64_t mixed(uint64_t x) {  // splitmix64 (Steele et al. 2014)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// Bits for a piece of a tensor in an update, W words at a time; the same ones whoever asks for them (Marsaglia 2003).
struct Bits {
    words x;

    Bits(float steps, long of, long start) {
        for (int lane = 0; lane < W; lane++)
            x[lane] = mixed(mixed(mixed((uint64_t)steps) + of) + start + lane) | 1;
    }

    words next() {
        x ^= x << 13;
        x ^= x >> 17;
        return x ^= x << 5;
    }
};

inline void store_drawn(float *to, vec x, words) { store(to, x); }

// Up or down at random, by 16 bits, so that a mean of many is x: where a moment changes by less than half of what bf16
// tells apart, rounding to the nearest would leave it as it is for ever (Gupta et al. 2015).
inline void store_drawn(uint16_t *to, vec x, words bits) {
    const halves half = __builtin_convertvector(((words)x + bits) >> 16, halves);
    std::memcpy(to, &half, sizeof half);
}

// Kingma & Ba 2015, algorithm 1; decay is taken off the weights (Loshchilov & Hutter 2019) or added to the gradient.
template <typename M>
void adam(const Weights<M> *weights, const double *decays, long count, double rate, double beta1, double beta2,
          double eps, double scale, double share, int decoupled, int threads) {
    const std::vector<Piece> all = pieces(weights, count);
    for (long of = 0; of < count; of++)
        if (weights[of].grad || weights[of].narrow) *weights[of].steps += 1;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long number = 0; number < (long)all.size(); number++) {
        const auto [of, start, n] = all[number];
        Weights<M> at = weights[of];
        at.own += start;
        at.average = at.average && share ? at.average + start : nullptr;
        if (at.copy) at.copy += start;
        float step = 0, widen = 0;
        const bool learns = at.grad || at.narrow;
        if (learns) {
            if (at.grad) at.grad += start;
            if (at.narrow) at.narrow += start;
            at.mean += start, at.square += start;
            step = rate / (1 - std::pow(beta1, *at.steps)), widen = 1 / std::sqrt(1 - std::pow(beta2, *at.steps));
        }
        Bits bits(learns ? *at.steps : 0, of, start);
        const float of_gradient = scale, of_mean = 1 - beta1, kept = beta2, of_square = 1 - beta2, least = eps, follow = share;
        const float added = decoupled ? 0 : decays[of], taken = decoupled ? rate * decays[of] : 0;
        each(at, n, [&](const Weights<M> &here, long i) {
            vec own = load(here.own + i);
            if (learns) {
                const vec held = here.grad ? load(here.grad + i) : load(here.narrow + i);
                const vec grad = held * of_gradient + own * added;
                vec mean = load(here.mean + i), square = load(here.square + i) * kept + grad * grad * of_square;
                mean += (grad - mean) * of_mean;
                own -= own * taken;
                own -= step * mean / (root(square) * widen + least);
                store(here.own + i, own);
                const words drawn = sizeof(M) < sizeof(float) ? bits.next() : words{};
                store_drawn(here.mean + i, mean, drawn & 0xffff), store_drawn(here.square + i, square, drawn >> 16);
            }
            if (here.average) {
                const vec average = load(here.average + i);
                store(here.average + i, average + (own - average) * follow);
            }
            if (here.copy) store(here.copy + i, own);
        });
    }
}

template <typename T>
double squared(const T *grad, long n) {
    vec total = vec{};
    long i = 0;
    for (; i + W <= n; i += W) total += load(grad + i) * load(grad + i);
    double all = 0;
    for (; i < n; i++) all += (double)one(grad + i) * one(grad + i);
    for (int x = 0; x < W; x++) all += total[x];
    return all;
}

// The length of all gradients; no bit depends on how many threads there are.
double length(const Weights<float> *weights, long count, int threads) {
    const std::vector<Piece> all = pieces(weights, count);
    std::vector<double> sums(all.size());
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long number = 0; number < (long)all.size(); number++) {
        const auto [of, start, n] = all[number];
        const auto &at = weights[of];
        sums[number] = at.grad ? squared(at.grad + start, n) : at.narrow ? squared(at.narrow + start, n) : 0;
    }
    double total = 0;
    for (double each : sums) total += each;
    return std::sqrt(total);
}

}  // namespace

#define FOR(M, NAME)                                                                                                   \
    extern "C" void adam_##NAME(const Weights<M> *weights, const double *decays, int64_t count, double rate,           \
                                double beta1, double beta2, double eps, double scale, double share, int decoupled,     \
                                int threads) {                                                                         \
        adam(weights, decays, count, rate, beta1, beta2, eps, scale, share, decoupled, threads);                       \
    }

FOR(float, fp32)  // the moments
FOR(uint16_t, bf16)

extern "C" void length_fp32(const Weights<float> *weights, double *found, int64_t count, int threads) {
    *found = length(weights, count, threads);
}
