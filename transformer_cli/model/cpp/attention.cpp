// softmax(Q K^T / sqrt(d_k)) V and its gradient, for sentences that lie behind one another. spans.py calls it.
//
// n queries and S keys of a sentence, K features of a head. A vector of a head is K numbers side by side; from token to
// token it is `step` numbers. A thread works on a head of keys of a sentence, with all heads of queries that share it:
// no bit depends on how many threads there are.

#include <algorithm>
#include <cmath>

#include <omp.h>

#include "registers.h"

namespace {

constexpr int SUMS = W == 16 ? 24 : 8;  // that stay in registers

// c (m rows, n columns) = a b, or c + a b where it adds: a[i * row + j * column] for j < inner, b of n columns.
template <int M, int N>
inline void tile(float *c, long width, const float *a, long row, long column, const float *b, int inner, bool adds) {
    vec s[M][N];
    for (int i = 0; i < M; i++)
        for (int x = 0; x < N; x++) s[i][x] = adds ? load(c + i * width + x * W) : vec{};
    for (int j = 0; j < inner; j++, b += width)
        for (int x = 0; x < N; x++) {
            vec right = load(b + x * W);
            for (int i = 0; i < M; i++) s[i][x] += a[i * row + j * column] * right;
        }
    for (int i = 0; i < M; i++)
        for (int x = 0; x < N; x++) store(c + i * width + x * W, s[i][x]);
}

// M rows at a time, or one fewer, N registers wide: of m rows about as many each time as fit into registers.
template <int M, int N>
inline void rows(int m, float *c, long width, const float *a, long row, long column, const float *b, int inner,
                 bool adds) {
    if (m == M) return tile<M, N>(c, width, a, row, column, b, inner, adds);
    if constexpr (M > 1) rows<M - 1, N>(m, c, width, a, row, column, b, inner, adds);
}

template <int N>
inline void strip(float *c, long width, const float *a, long row, long column, const float *b, int m, int inner,
                  bool adds) {
    constexpr int M = SUMS / N;
    const int blocks = (m + M - 1) / M;
    for (int block = 0, i = 0; block < blocks; block++) {
        const int end = m * (block + 1) / blocks;
        rows<M, N>(end - i, c + i * width, width, a + i * row, row, column, b, inner, adds);
        i = end;
    }
}

void product(float *c, int width, const float *a, long row, long column, const float *b, int m, int inner, bool adds) {
    int x = 0;
    for (; x + 4 * W <= width; x += 4 * W) strip<4>(c + x, width, a, row, column, b + x, m, inner, adds);
    for (; x + 2 * W <= width; x += 2 * W) strip<2>(c + x, width, a, row, column, b + x, m, inner, adds);
    for (; x < width; x += W) strip<1>(c + x, width, a, row, column, b + x, m, inner, adds);
}

template <typename T>
void gather(float *to, const T *from, long step, int n, int K) {
    for (int i = 0; i < n; i++)
        for (int x = 0; x < K; x += W) store(to + (long)i * K + x, load(from + i * step + x));
}

template <typename T>
void scatter(T *to, const float *from, long step, int n, int K) {
    for (int i = 0; i < n; i++)
        for (int x = 0; x < K; x += W) store(to + i * step + x, load(from + (long)i * K + x));
}

// (n, K) to (K, width), with zeros from n on.
template <typename T>
void turn(float *to, const T *from, long step, int n, int width, int K) {
    for (int i = 0; i < width; i += W)
        for (int x = 0; x < K; x += W) {
            words block[W] = {};
            for (int y = 0; y < std::min(W, n - i); y++) block[y] = (words)load(from + (i + y) * step + x);
            transpose(block);
            for (int y = 0; y < W; y++) store(to + (long)(x + y) * width + i, (vec)block[y]);
        }
}

constexpr long BLOCK = 64;  // queries at a time

// What a thread works in, in numbers, where the longest sentence has S keys.
inline long room_for(long S, long K) { return 4 * S * K + BLOCK * (4 * K + 2 * S); }

struct Room {
    float *next;
    float *take(long n) { return (next += n) - n; }
};

struct Shape {
    int64_t sentences, heads, sharing, features;  // heads of keys and values; of queries, which share one of them
    int64_t query_step, key_step, value_step;                  // what comes out has no gaps, nor has its gradient
    int64_t of_query_step, of_key_step, of_value_step;         // of their gradients
    int64_t query_rows, key_rows;                              // with those behind the last sentence
    int64_t mask_queries, mask_keys;                           // each as many as the longest sentence has, or more
    const int64_t *query_starts, *key_starts, *weight_starts;  // of each sentence, and the end of the last one
    float *room;                                               // of all threads
    int64_t longest, is_causal, threads;                       // keys of a sentence, at most
};

inline int padded(int n) { return (n + W - 1) / W * W; }

// A head of keys and values of a sentence. Weights are (S, queries): so what concerns a query is side by side.
struct Unit {
    const Shape &at;
    long sentence, head, first, from;
    int n, S;

    Unit(const Shape &at, long number) : at(at), sentence(number / at.heads), head(number % at.heads) {
        first = at.query_starts[sentence], from = at.key_starts[sentence];
        n = at.query_starts[sentence + 1] - first, S = at.key_starts[sentence + 1] - from;
    }
    long weights(long own, int start) const {
        return at.weight_starts[sentence] * at.sharing * at.heads + (own * padded(n) + start) * S;
    }
    long mask(long own, int start) const {
        return (sentence * at.heads * at.sharing + own) * at.mask_keys * at.mask_queries + start;
    }
};

constexpr int AHEAD = 64;  // rows that are sent for, of more the first ones: others would take their place

template <typename T>
inline void send_for(const T *from, long step, int n, int K) {
    for (int i = 0; i < std::min(n, AHEAD); i++)
        for (int x = 0; x < K; x += 64 / (int)sizeof(T)) __builtin_prefetch(from + i * step + x);
}

// So that it is there when that unit's turn comes: no prefetcher finds it, a few rows in each of several places.
template <typename T>
void send_for(const Unit &unit, const T *query, const T *key, const T *value) {
    const Shape &at = unit.at;
    const int K = at.features, wide = at.sharing * K;
    send_for(query + unit.first * at.query_step + unit.head * wide, at.query_step, unit.n, wide);
    send_for(key + unit.from * at.key_step + unit.head * K, at.key_step, unit.S, K);
    send_for(value + unit.from * at.value_step + unit.head * K, at.value_step, unit.S, K);
}

// Zeros: behind the last sentence, and where there is nothing to see.
template <typename T>
void clear(T *to, long step, long width, long first, long rows) {
    for (long i = first; i < rows; i++) std::fill_n(to + i * step, width, T{});
}

const ints LANES = [] {
    ints lanes;
    for (int i = 0; i < W; i++) lanes[i] = i;
    return lanes;
}();

template <typename T>
void forward(const Shape &at, const T *query, const T *key, const T *value, const T *mask, T *output, float *weights) {
    const int K = at.features;
    const long query_width = at.heads * at.sharing * K;
    const float scale = 1 / std::sqrt((float)K);
    clear(output, query_width, query_width, at.query_starts[at.sentences], at.query_rows);
#pragma omp parallel for schedule(static) num_threads(at.threads)
    for (long number = 0; number < at.sentences * at.heads; number++) {
        const Unit unit(at, number);
        const int n = unit.n, S = unit.S;
        if (!S) clear(output + unit.head * at.sharing * K, query_width, at.sharing * K, unit.first, unit.first + n);
        if (number + 1 < at.sentences * at.heads) send_for(Unit(at, number + 1), query, key, value);
        if (!n || !S) continue;
        Room room{at.room + omp_get_thread_num() * room_for(at.longest, K)};
        float *keys = room.take(S * K), *values = room.take(S * K);
        float *turned = room.take(BLOCK * K), *result = room.take(BLOCK * K), *used = room.take(BLOCK * S);
        gather(keys, key + unit.from * at.key_step + unit.head * K, at.key_step, S, K);
        gather(values, value + unit.from * at.value_step + unit.head * K, at.value_step, S, K);
        for (long own = unit.head * at.sharing; own < (unit.head + 1) * at.sharing; own++)
            for (int start = 0; start < n; start += BLOCK) {
                const int rows = std::min<int>(BLOCK, n - start), P = padded(rows);
                float *scores = weights + unit.weights(own, start);
                turn(turned, query + (unit.first + start) * at.query_step + own * K, at.query_step, rows, P, K);
                product(scores, P, keys, K, 1, turned, S, K, false);
                for (int x = 0; x < P; x += W) {
                    const ints last = at.is_causal ? start + x + LANES : ints{} + S;
                    vec most = vec{} - INFINITY, total = vec{};
                    for (int j = 0; j < S; j++) {
                        vec score = load(scores + (long)j * P + x);
                        most = score > most && j <= last ? score : most;
                    }
                    for (int j = 0; j < S; j++) {
                        float *place = scores + (long)j * P + x;
                        vec e = exponential((load(place) - most) * scale);
                        e = j <= last ? e : vec{};
                        total += e;
                        store(place, e);
                    }
                    const vec share = 1 / total;
                    for (int j = 0; j < S; j++) {
                        float *place = scores + (long)j * P + x;
                        const vec weight = load(place) * share;
                        store(place, weight);
                        const long at_mask = unit.mask(own, start) + j * at.mask_queries + x;
                        store(used + (long)j * P + x, mask ? weight * load(mask + at_mask) : weight);
                    }
                }
                product(result, K, used, 1, P, values, rows, S, false);
                scatter(output + (unit.first + start) * query_width + own * K, result, query_width, rows, K);
            }
    }
}

template <typename T>
void backward(const Shape &at, const T *query, const T *key, const T *value, const T *mask, const T *grad,
              const float *weights, T *grad_query, T *grad_key, T *grad_value) {
    const int K = at.features;
    const long query_width = at.heads * at.sharing * K;
    const float scale = 1 / std::sqrt((float)K);
    clear(grad_query, at.of_query_step, query_width, at.query_starts[at.sentences], at.query_rows);
    clear(grad_key, at.of_key_step, at.heads * K, at.key_starts[at.sentences], at.key_rows);
    clear(grad_value, at.of_value_step, at.heads * K, at.key_starts[at.sentences], at.key_rows);
#pragma omp parallel for schedule(static) num_threads(at.threads)
    for (long number = 0; number < at.sentences * at.heads; number++) {
        const Unit unit(at, number);
        const int n = unit.n, S = unit.S;
        if (number + 1 < at.sentences * at.heads) {
            const Unit next(at, number + 1);
            send_for(next, query, key, value);
            send_for(grad + next.first * query_width + next.head * at.sharing * K, query_width, next.n, at.sharing * K);
            send_for(weights + next.weights(next.head * at.sharing, 0), W, padded(next.n) / W * next.S, W);
        }
        Room room{at.room + omp_get_thread_num() * room_for(at.longest, K)};
        float *keys = room.take(S * K), *values = room.take(S * K);
        float *of_keys = room.take(S * K), *of_values = room.take(S * K);
        float *queries = room.take(BLOCK * K), *grads = room.take(BLOCK * K), *result = room.take(BLOCK * K);
        float *turned = room.take(BLOCK * K), *used = room.take(BLOCK * S), *of_scores = room.take(BLOCK * S);
        gather(keys, key + unit.from * at.key_step + unit.head * K, at.key_step, S, K);
        gather(values, value + unit.from * at.value_step + unit.head * K, at.value_step, S, K);
        std::fill_n(of_keys, 2L * S * K, 0.0f);
        for (long own = unit.head * at.sharing; own < (unit.head + 1) * at.sharing; own++)
            for (int start = 0; start < n; start += BLOCK) {
                const int rows = std::min<int>(BLOCK, n - start), P = padded(rows);
                const float *saved = weights + unit.weights(own, start);
                const T *out = grad + (unit.first + start) * query_width + own * K;
                gather(queries, query + (unit.first + start) * at.query_step + own * K, at.query_step, rows, K);
                gather(grads, out, query_width, rows, K);
                turn(turned, out, query_width, rows, P, K);
                product(of_scores, P, values, K, 1, turned, S, K, false);
                for (int x = 0; x < P; x += W) {
                    vec mean = vec{};
                    for (int j = 0; j < S; j++) {
                        const long place = (long)j * P + x, at_mask = unit.mask(own, start) + j * at.mask_queries + x;
                        const vec weight = load(saved + place), kept = mask ? load(mask + at_mask) : vec{} + 1.0f;
                        const vec of_weight = load(of_scores + place) * kept;
                        mean += of_weight * weight;
                        store(used + place, weight * kept);
                        store(of_scores + place, of_weight);
                    }
                    for (int j = 0; j < S; j++) {
                        const long place = (long)j * P + x;
                        store(of_scores + place, (load(of_scores + place) - mean) * load(saved + place) * scale);
                    }
                }
                product(result, K, of_scores, 1, P, keys, rows, S, false);
                scatter(grad_query + (unit.first + start) * at.of_query_step + own * K, result, at.of_query_step, rows, K);
                product(of_keys, K, of_scores, P, 1, queries, S, rows, true);
                product(of_values, K, used, P, 1, grads, S, rows, true);
            }
        scatter(grad_key + unit.from * at.of_key_step + unit.head * K, of_keys, at.of_key_step, S, K);
        scatter(grad_value + unit.from * at.of_value_step + unit.head * K, of_values, at.of_value_step, S, K);
    }
}

}  // namespace

extern "C" int64_t attention_room(int64_t longest, int64_t features) { return room_for(longest, features); }

#define FOR(T, NAME)                                                                                                   \
    extern "C" void forward_##NAME(const Shape &at, const T *query, const T *key, const T *value, const T *mask,       \
                                   T *output, float *weights) {                                                        \
        forward(at, query, key, value, mask, output, weights);                                                         \
    }                                                                                                                  \
    extern "C" void backward_##NAME(const Shape &at, const T *query, const T *key, const T *value, const T *mask,      \
                                    const T *grad, const float *weights, T *grad_query, T *grad_key, T *grad_value) {  \
        backward(at, query, key, value, mask, grad, weights, grad_query, grad_key, grad_value);                        \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
