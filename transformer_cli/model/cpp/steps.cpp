// A step of a search: all of it, or what is between its products. compiled_steps.py calls it.
//
// A row is a beam; sentences have `places` places for beams each, K features of a head. No row knows of another, and
// the order of sums is the same wherever it stands: neither neighbours nor threads change a bit.

#include <algorithm>
#include <cmath>
#include <vector>

#include "panels.h"
#include "registers.h"

namespace {

struct Step {
    int64_t rows, padded;              // of beams, or of positions; with those behind them
    int64_t sentences, places;
    int64_t heads, sharing, features;  // heads of keys and values; of queries, which share one of them
    int64_t keys, room, start;         // cached so far, and for how many there is room; where the newest begin
    int64_t hidden_room;               // numbers from one place to the next in what is hidden
    int64_t source;                    // positions of a sentence, as they lie in memory
    const int64_t *place_of;           // of each row; none where each place has one
    const int64_t *lengths;            // of each source
    const float *hidden;               // 0 where a place sees a key; none where it sees all
    const float *waves;                // of a position and those behind it, by which queries and keys are turned
                                       // (registers.h); none where they are not
    int64_t threads;

    long place(long row) const { return place_of ? place_of[row] : row; }
    long queries() const { return heads * sharing * features; }
};

// ahead: numbers from what is read here to what is read next, which is on its way meanwhile.
inline float dot(const float *a, const float *b, int K, long ahead = 0) {
    vec total = vec{};
    for (int x = 0; x < K; x += W) {
        total += load(a + x) * load(b + x);
        __builtin_prefetch(b + ahead + x);
    }
    return sum(total);
}

// Scores of n keys become their weights; behind them there is room for a register.
inline void softmax(float *scores, int n) {
    for (int j = n; j % W; j++) scores[j] = -INFINITY;
    vec highest = vec{} - INFINITY;
    for (int j = 0; j < n; j += W) highest = load(scores + j) > highest ? load(scores + j) : highest;
    float most = highest[0];
    for (int i = 1; i < W; i++) most = std::max(most, highest[i]);
    vec total = vec{};
    for (int j = 0; j < n; j += W) {
        const vec e = exponential(load(scores + j) - most);
        total += e;
        store(scores + j, e);
    }
    const float share = 1 / sum(total);
    for (int j = 0; j < n; j += W) store(scores + j, load(scores + j) * share);
}

constexpr int TOTALS = 4;  // that do not wait for each other

// Of some registers of each value.
template <int N, typename T>
inline void average(T *to, const float *weights, const float *values, long step, const int32_t *which, int n,
                    long ahead) {
    vec totals[N] = {};
    for (int j = 0; j < n; j++) {
        const float *from = values + (which ? which[j] : j) * step;
        for (int i = 0; i < N; i++) {
            totals[i] += weights[j] * load(from + i * W);
            __builtin_prefetch(from + ahead + i * W);
        }
    }
    for (int i = 0; i < N; i++) store(to + i * W, totals[i]);
}

template <typename T>
inline void average(T *to, const float *weights, const float *values, long step, const int32_t *which, int n, int K,
                    long ahead = 0) {
    int x = 0;
    for (; x + TOTALS * W <= K; x += TOTALS * W) average<TOTALS>(to + x, weights, values + x, step, which, n, ahead);
    for (; x < K; x += W) average<1>(to + x, weights, values + x, step, which, n, ahead);
}

struct Joint {
    const float *weight, *bias;  // of a norm; none where there is none
    float eps;
    int32_t replaces;  // whether what is normalised takes the place of the sum, too
    int32_t centred;   // LayerNorm; of RMSNorm the mean is taken for 0
};

// Of heads.
struct Norms {
    Joint query, key;
};

// x + more, and its norm.
template <typename M, typename T>
void join(const Joint &by, float *x, const M *more, T *output, long D) {
    vec total = vec{};
    for (long d = 0; d < D; d += W) {
        const vec both = more ? load(x + d) + load(more + d) : load(x + d);
        total += both;
        store(x + d, both);
        if (!by.weight) store(output + d, both);
    }
    if (!by.weight) return;
    const float mean = by.centred ? sum(total) / D : 0;
    vec squares = vec{}, left = vec{};
    for (long d = 0; d < D; d += W) {
        const vec apart = load(x + d) - mean;
        left += apart;
        squares += apart * apart;
    }
    const float rest = by.centred ? sum(left) / D : 0, variance = sum(squares) / D - rest * rest;
    const float scale = variance < INFINITY ? 1 / std::sqrt(variance + by.eps) : NAN;  // 0 would hide what ran away
    for (long d = 0; d < D; d += W) {
        const vec standard = (load(x + d) - mean - rest) * scale * load(by.weight + d);
        const vec made = by.bias ? standard + load(by.bias + d) : standard;
        store(output + d, made);
        if (by.replaces) store(x + d, made);
    }
}

// Apart from what it is called by, which is then as fast as without.
[[gnu::noinline]] void normalise(const Joint &norm, float *x, int K) {
    join(norm, x, (const float *)nullptr, x, K);
}

// What attention takes of a head: normalised, turned and scaled.
template <typename T>
inline void prepare(const T *x, const Joint &norm, const float *waves, float scale, float *to, int K) {
    for (int k = 0; k < K; k += W) store(to + k, load(x + k));
    if (norm.weight) normalise(norm, to, K);
    for (int k = 0; k < K; k += W)
        store(to + k, (waves ? turned(load(to + k), waves + k, K) : load(to + k)) * scale);
}

// What a thread works in.
struct Room {
    std::vector<int32_t> own;  // keys that a row sees, so many
    std::vector<float> scores, query;
    long row = -1;
    int n = 0;

    explicit Room(const Step &at) : own(at.keys), scores(std::max(at.keys, at.source) + W), query(at.features) {}

    void see(const Step &at, long of_row) {
        if (row == of_row) return;
        row = of_row, n = 0;
        const float *hidden = at.hidden ? at.hidden + at.place(row) * at.hidden_room : nullptr;
        for (int j = 0; j < at.keys; j++)
            if (!hidden || hidden[j] == 0) own[n++] = j;
    }
};

// A row's head of keys and values: they are written, (B, heads, room, K), and read by the beams whose past they are.
template <typename M, typename T>
void attend_past(const Step &at, const Norms &norms, long row, long head, const M *query_key_value, float *keys,
                 float *values, T *context, Room &room) {
    const int K = at.features;
    const long place = at.place(row), queries = at.queries();
    const M *from = query_key_value + row * (queries + 2 * at.heads * K);
    const long first = (place / at.places * at.heads + head) * at.room * K;
    const long next = at.room * K, newest = first + (at.start + place % at.places) * K;
    room.see(at, row);
    const int n = room.n;
    prepare(from + queries + head * K, norms.key, at.waves, 1, keys + newest, K);
    for (int x = 0; x < K; x += W) store(values + newest + x, load(from + queries + (at.heads + head) * K + x));
    const float scale = 1 / std::sqrt((float)K);
    for (long mine = head * at.sharing; mine < (head + 1) * at.sharing; mine++) {
        prepare(from + mine * K, norms.query, at.waves, scale, room.query.data(), K);
        for (int j = 0; j < n; j++)
            room.scores[j] = dot(room.query.data(), keys + first + (long)room.own[j] * K, K, next);
        softmax(room.scores.data(), n);
        average(context + row * queries + mine * K, room.scores.data(), values + first, K, room.own.data(), n, K, next);
    }
}

// The same to keys (B, heads, K, source) and values (B, heads, source, K) of the source.
template <typename M, typename T>
void attend_source(const Step &at, const Norms &norms, long row, long head, const M *query, const float *keys,
                   const float *values, T *context, Room &room) {
    const int K = at.features;
    const long next = at.source * K, sentence = at.place(row) / at.places, first = (sentence * at.heads + head) * next;
    const int n = at.lengths[sentence];
    const float scale = 1 / std::sqrt((float)K);
    for (long mine = head * at.sharing; mine < (head + 1) * at.sharing; mine++) {
        prepare(query + row * at.queries() + mine * K, norms.query, nullptr, scale, room.query.data(), K);
        for (int j = 0; j < n; j += W) {
            vec totals[TOTALS] = {};
            for (int x = 0; x < K; x += TOTALS)
                for (int i = 0; i < TOTALS; i++) {
                    const float *from = keys + first + (long)(x + i) * at.source + j;
                    totals[i] += room.query[x + i] * load(from);
                    __builtin_prefetch(from + next);
                }
            store(room.scores.data() + j, (totals[0] + totals[1]) + (totals[2] + totals[3]));
        }
        softmax(room.scores.data(), n);
        average(context + row * at.queries() + mine * K, room.scores.data(), values + first, K, nullptr, n, K, next);
    }
}

// A sentence's head: each of its positions to all of them, from rows of queries, keys and values, `source` for each; the
// first two are prepared where they lie.
void attend_within(const Step &at, const Norms &norms, long sentence, long head, float *query_key_value, float *context,
                   Room &room) {
    const int K = at.features, n = at.lengths[sentence];
    const long queries = at.queries(), width = queries + 2 * at.heads * K, first = sentence * at.source;
    float *rows = query_key_value + first * width, *keys = rows + queries + head * K, *values = keys + at.heads * K;
    const float scale = 1 / std::sqrt((float)K);
    auto waves = [&](long i) { return at.waves ? at.waves + i * 2 * K : nullptr; };
    for (long i = 0; i < n; i++) prepare(keys + i * width, norms.key, waves(i), 1, keys + i * width, K);
    for (long mine = head * at.sharing; mine < (head + 1) * at.sharing; mine++)
        for (long i = 0; i < at.source; i++) {
            float *to = context + (first + i) * queries + mine * K, *query = rows + i * width + mine * K;
            if (i >= n) {
                std::fill_n(to, K, 0.0f);
                continue;
            }
            prepare(query, norms.query, waves(i), scale, query, K);
            for (int j = 0; j < n; j++) room.scores[j] = dot(query, keys + j * width, K);
            softmax(room.scores.data(), n);
            average(to, room.scores.data(), values, width, nullptr, n, K);
        }
}

// Rows of keys and values, `length` for each sentence, to what attend_source reads.
void remember(const Step &at, const Norms &norms, long sentence, long head, const float *key_value, float *keys,
              float *values, long length, Room &room) {
    const int K = at.features;
    const long first = (sentence * at.heads + head) * at.source * K;
    for (long i = 0; i < at.lengths[sentence]; i++) {
        const float *from = key_value + (sentence * length + i) * 2 * at.heads * K + head * K;
        prepare(from, norms.key, nullptr, 1, room.query.data(), K);
        for (int x = 0; x < K; x++) keys[first + x * at.source + i] = room.query[x];
        std::copy(from + at.heads * K, from + (at.heads + 1) * K, values + first + i * K);
    }
}

template <typename M, typename T>
void join_rows(const Joint &by, float *x, const M *more, T *output, long rows, long D, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < rows; i++) join(by, x + i * D, more ? more + i * D : nullptr, output + i * D, D);
}

// Heads of rows, or of sentences.
template <typename Each>
void each_head(const Step &at, long n, Each each) {
#pragma omp parallel num_threads(at.threads)
    {
        Room room(at);
#pragma omp for schedule(static)
        for (long unit = 0; unit < n * at.heads; unit++) each(unit / at.heads, unit % at.heads, room);
    }
}

// Zeros behind the last row.
template <typename T>
void clear(const Step &at, T *to) {
    std::fill(to + at.rows * at.queries(), to + at.padded * at.queries(), T{});
}

struct Layer {
    Joint joints[3];
    Norms past, source;
    Matrix query_key_value, output, query, cross_output, up, gate, down;  // gate: no panels where there is none
};

struct Layers {
    const Layer *layers;
    int64_t depth, width, inner;
    Activation activation;
    Joint last;
};

// All of a step; T is what products read. x becomes what logits are made of. room: for all that is made in between.
template <typename T>
void step(const Step &at, const Layers &all, const Matrix &table, float *x, float *keys, float *values,
          const float *memory_keys, const float *memory_values, float *logits, float *room) {
    const long D = all.width, queries = at.queries(), units = at.rows * at.heads;
    const long cached = at.sentences * at.heads * at.room * at.features;
    const long remembered = at.sentences * at.heads * at.source * at.features;
    float *heads = room, *made = heads + at.rows * (queries + 2 * at.heads * at.features);
    T *context = (T *)(made + at.rows * D), *inner = context + at.rows * queries, *entered = inner + at.rows * all.inner;
#pragma omp parallel num_threads(at.threads)
    {
        Room own(at);
        const float *more = nullptr;
        auto enter = [&](const Joint &by) {
#pragma omp for schedule(static)
            for (long i = 0; i < at.rows; i++)
                join(by, x + i * D, more ? more + i * D : nullptr, entered + i * D, D);
            more = made;
        };
        auto product = [&](const Matrix &by, const T *from, float *to) {
            multiply(by, from, to, at.rows);
#pragma omp barrier
        };
        for (long l = 0; l < all.depth; l++) {
            const Layer &layer = all.layers[l];
            enter(layer.joints[0]);
            product(layer.query_key_value, entered, heads);
#pragma omp for schedule(static)
            for (long unit = 0; unit < units; unit++)
                attend_past(at, layer.past, unit / at.heads, unit % at.heads, heads, keys + l * cached,
                            values + l * cached, context, own);
            product(layer.output, context, made);
            enter(layer.joints[1]);
            product(layer.query, entered, heads);
#pragma omp for schedule(static)
            for (long unit = 0; unit < units; unit++)
                attend_source(at, layer.source, unit / at.heads, unit % at.heads, heads, memory_keys + l * remembered,
                              memory_values + l * remembered, context, own);
            product(layer.cross_output, context, made);
            enter(layer.joints[2]);
            const Matrix *gate = layer.gate.panels ? &layer.gate : nullptr;
            multiply(layer.up, gate, all.activation, entered, inner, at.rows);
#pragma omp barrier
            product(layer.down, inner, made);
        }
        enter(all.last);
        product(table, entered, logits);
    }
}

}  // namespace

extern "C" int64_t panel_width() { return PANEL; }

extern "C" int64_t multiplies_pairs() { return MULTIPLIES_PAIRS; }

extern "C" int64_t multiplies_tiles() { return has_tiles(); }

extern "C" void attend_within_fp32(const Step &at, const Norms &norms, float *query_key_value, float *context) {
    clear(at, context);
    each_head(at, at.sentences, [&](long sentence, long head, Room &room) {
        attend_within(at, norms, sentence, head, query_key_value, context, room);
    });
}

extern "C" void remember_fp32(const Step &at, const Norms &norms, const float *key_value, float *keys, float *values,
                              int64_t length) {
    each_head(at, at.sentences, [&](long sentence, long head, Room &room) {
        remember(at, norms, sentence, head, key_value, keys, values, length, room);
    });
}

#define FOR(T, NAME)                                                                                                   \
    extern "C" void attend_past_##NAME(const Step &at, const Norms &norms, const T *query_key_value, float *keys,      \
                                       float *values, T *context) {                                                    \
        clear(at, context);                                                                                            \
        each_head(at, at.rows, [&](long row, long head, Room &room) {                                                  \
            attend_past(at, norms, row, head, query_key_value, keys, values, context, room);                           \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void attend_source_##NAME(const Step &at, const Norms &norms, const T *query, const float *keys,        \
                                         const float *values, T *context) {                                            \
        clear(at, context);                                                                                            \
        each_head(at, at.rows, [&](long row, long head, Room &room) {                                                  \
            attend_source(at, norms, row, head, query, keys, values, context, room);                                   \
        });                                                                                                            \
    }                                                                                                                  \
    extern "C" void join_##NAME(const Joint &by, float *x, const void *more, T *output, int64_t rows, int64_t width,   \
                                int is_rounded, int threads) {                                                         \
        if (is_rounded)                                                                                                \
            join_rows(by, x, (const uint16_t *)more, output, rows, width, threads);                                    \
        else                                                                                                           \
            join_rows(by, x, (const float *)more, output, rows, width, threads);                                       \
    }                                                                                                                  \
    extern "C" void product_##NAME(const Matrix &by, const Matrix *gate, Activation activation, const T *x, void *y,   \
                                   int64_t rows, int rounds, int threads) {                                            \
        _Pragma("omp parallel num_threads(threads)") {                                                                 \
            if (rounds)                                                                                                \
                multiply(by, gate, activation, x, (uint16_t *)y, rows);                                                \
            else                                                                                                       \
                multiply(by, gate, activation, x, (float *)y, rows);                                                   \
        }                                                                                                              \
    }                                                                                                                  \
    extern "C" void step_##NAME(const Step &at, const Layers &all, const Matrix &table, float *x, float *keys,         \
                                float *values, const float *memory_keys, const float *memory_values, float *logits,    \
                                float *room) {                                                                         \
        step<T>(at, all, table, x, keys, values, memory_keys, memory_values, logits, room);                            \
    }

FOR(float, fp32)
FOR(uint16_t, bf16)
