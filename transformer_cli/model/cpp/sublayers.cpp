// Sublayers inside their residuals, there and back, by one call: the functions of the other files one after the other,
// with the bits that they have one by one. sublayers.py calls it.

#include <algorithm>
#include <cstdint>

typedef uint16_t bf16;

extern "C" {
int64_t norm_room(int64_t rows, int64_t width);
int64_t linear_room(int64_t rows, int64_t width);
int64_t product_room(int64_t rows, int64_t inputs);
void norm_bf16(const bf16 *x, const bf16 *weight, const bf16 *bias, bf16 *output, float *moments, int64_t rows,
               int64_t width, float eps, int centred, int threads);
void norm_back_bf16(const bf16 *x, const bf16 *weight, const float *moments, const bf16 *grad, const bf16 *beside,
                    bf16 *grad_x, bf16 *grad_weight, bf16 *grad_bias, float *room, int64_t rows, int64_t width,
                    int centred, int threads);
void drop_bf16(const bf16 *x, const bf16 *residual, bf16 *output, int64_t n, uint64_t seed, uint32_t dropped,
               float scale, int threads);
void multiply_bf16(const bf16 *a, const bf16 *b, const bf16 *bias, const float *scales, const float *less, bf16 *made,
                   uint32_t *room, int64_t rows, int64_t inputs, int64_t outputs, int by_rows, int rectifies,
                   int threads);
void turn_bf16(const bf16 *x, const float *scales, bf16 *turned, int64_t rows, int64_t width, int threads);
void linear_back_bf16(bf16 *grad, const bf16 *made, const bf16 *bias, bf16 *sums, float *room, bf16 *turned,
                      int64_t rows, int64_t width, int threads);
void forward_bf16(const void *shape, const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *mask,
                  bf16 *output, float *weights);
void backward_bf16(const void *shape, const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *mask,
                   const bf16 *grad, const float *weights, bf16 *grad_query, bf16 *grad_key, bf16 *grad_value);
}

namespace {

enum Kind : int64_t { FED, ATTENDED, NORMED };

struct Sublayer {  // as sublayers.py lays it out
    int64_t kind, rows, width;
    int64_t inner, context;  // of what the first linear layer makes; of what the last one of attention takes, else 0
    int64_t weights;         // of attention
    int64_t keys, shared;    // rows of the memory, else 0; of keys and values, which are made of it, both together
    int64_t threads;
    uint64_t seed, inner_seed;
    uint32_t share, inner_share;  // of dropout, in 2^-16, outside and inside
    float eps;
    int32_t centred, first;  // the norm: whether it is centred, and whether it comes first
};

inline int64_t widest(const Sublayer &at) { return std::max({at.width, at.inner, at.context, at.shared}); }

// Numbers in fp32 that any of the functions works in.
int64_t room_of_functions(const Sublayer &at) {
    const int64_t rows = std::max(at.rows, at.keys);
    const int64_t product = std::max(product_room(rows, widest(at)), product_room(widest(at), rows));
    return std::max({at.threads * product, norm_room(at.rows, at.width), linear_room(rows, widest(at))});
}

// What they work in, one after the other, and what lies behind that.
struct Work {
    const Sublayer &at;
    float *room;
    bf16 *rest;

    Work(const Sublayer &at, float *room) : at(at), room(room), rest((bf16 *)(room + room_of_functions(at))) {}

    bf16 *take(int64_t width) { return take(at.rows, width); }

    bf16 *take(int64_t rows, int64_t width) {
        bf16 *taken = rest;
        rest += rows * width;
        return taken;
    }
};

// What the way back needs of the way there. beside: what is normed, (rows, width), where the norm comes last; where it
// comes first that is what is given, of which the norm is made again: so it lies in a cache both times.
struct Kept {
    float *moments, *weights;
    bf16 *beside, *inner, *context, *shared;

    Kept(const Sublayer &at, float *place) : moments(place), weights(moments + 3 * at.rows) {
        beside = (bf16 *)(weights + at.weights);
        inner = beside + (at.first ? 0 : at.rows * at.width);
        context = inner + at.rows * at.inner;
        shared = context + at.rows * at.context;
    }
};

// Of (rows, width), by a share of 0 of none.
void drop(const Work &work, const bf16 *x, const bf16 *residual, bf16 *made, int64_t width, uint64_t seed,
          uint32_t share) {
    drop_bf16(x, residual, made, work.at.rows * width, seed, share, 65536.0 / (65536 - share), work.at.threads);
}

struct Linear {
    const bf16 *weight, *bias;
    int64_t rows, inputs, outputs;

    void there(const Work &work, const bf16 *x, bf16 *made, bool rectifies = false) const {
        multiply_bf16(x, weight, bias, nullptr, nullptr, made, (uint32_t *)work.room, rows, inputs, outputs, true,
                      rectifies, work.at.threads);
    }

    // made: what it made by max(0, x), if it did. of_x, of_weight: none where nobody wants them. Weights learn
    // by a product over rows, of which the narrow side is turned: where these are the inputs, it comes out turned, too.
    void back(const Work &work, const bf16 *x, bf16 *grad, const bf16 *made, bf16 *of_x, bf16 *of_weight,
              bf16 *of_bias) const {
        const int64_t threads = work.at.threads;
        uint32_t *room = (uint32_t *)work.room;
        const bool turns_x = inputs < outputs;
        bf16 *turned = work.rest, *turned_grad = of_weight && !turns_x ? turned : nullptr;
        linear_back_bf16(grad, made, bias, of_bias, work.room, turned_grad, rows, outputs, threads);
        auto multiply = [&](const bf16 *a, const bf16 *b, bf16 *made, int64_t rows, int64_t inputs, int64_t outputs) {
            multiply_bf16(a, b, nullptr, nullptr, nullptr, made, room, rows, inputs, outputs, false, false, threads);
        };
        if (of_x) multiply(grad, weight, of_x, rows, outputs, inputs);
        if (turned_grad) multiply(turned, x, of_weight, outputs, rows, inputs);
        if (!of_weight || turned_grad) return;
        bf16 *of_turned = turned + inputs * rows;
        turn_bf16(x, nullptr, turned, rows, inputs, threads);
        multiply(turned, grad, of_turned, inputs, rows, outputs);
        turn_bf16(of_turned, nullptr, of_weight, inputs, outputs, threads);
    }
};

// The norm, dropout and the residual.
struct Around {
    const bf16 *weight, *bias;

    void norm(const Work &work, const bf16 *x, bf16 *made, float *moments) const {
        const Sublayer &at = work.at;
        norm_bf16(x, weight, bias, made, moments, at.rows, at.width, at.eps, at.centred, at.threads);
    }

    template <typename Inside>
    void there(Work &work, const Kept &kept, const bf16 *x, bf16 *output, Inside inside) const {
        const bool first = work.at.first;
        bf16 *made = work.take(work.at.width), *normed = work.take(first ? work.at.width : 0);
        if (first) norm(work, x, normed, kept.moments);
        inside(first ? normed : x, made);
        drop(work, made, x, first ? output : kept.beside, work.at.width, work.at.seed, work.at.share);
        if (!first) norm(work, kept.beside, output, kept.moments);
    }

    template <typename Inside>
    void back(Work &work, const Kept &kept, const bf16 *grad, const bf16 *x, bf16 *of_x, bf16 *of_weight, bf16 *of_bias,
              Inside inside) const {
        const Sublayer &at = work.at;
        bf16 *of_made = work.take(at.width), *of_inside = work.take(at.width);
        bf16 *given = work.take(at.first ? at.width : 0);
        const bf16 *normed = at.first ? x : kept.beside, *of_norm = at.first ? of_inside : grad;
        auto norm_back = [&] {
            norm_back_bf16(normed, weight, kept.moments, of_norm, at.first ? grad : nullptr, of_x, of_weight, of_bias,
                           work.room, at.rows, at.width, at.centred, at.threads);
        };
        if (at.first)
            norm(work, x, given, kept.moments);
        else
            norm_back();
        const bf16 *of_sum = at.first ? grad : of_x;
        if (at.share) drop(work, of_sum, nullptr, of_made, at.width, at.seed, at.share);
        inside(at.first ? given : x, (bf16 *)(at.share ? of_made : of_sum), of_inside);
        if (at.first) return norm_back();
        drop(work, of_inside, of_x, of_x, at.width, 0, 0);  // nothing but their sum
    }
};

void drop_inner(const Work &work, bf16 *x) {
    const Sublayer &at = work.at;
    if (at.inner_share) drop(work, x, nullptr, x, at.inner, at.inner_seed, at.inner_share);
}

}  // namespace

// Numbers in fp32.
extern "C" int64_t sublayer_kept(const Sublayer &at) {
    const int64_t beside = at.kind == NORMED || at.first ? 0 : at.width;
    const int64_t narrow = at.rows * (beside + at.inner + at.context) + at.keys * at.shared;
    return 3 * at.rows + at.weights + (narrow + 1) / 2;
}

extern "C" int64_t sublayer_room(const Sublayer &at, int back) {
    const int64_t around = (at.first ? 2 : 1) * at.width;
    const int64_t beside = around + (back ? at.width + at.inner + at.context + widest(at) : 0);
    const int64_t of_memory = back ? at.keys * (2 * at.shared + at.width) : 0;
    const int64_t of_weight = back ? at.width * std::max(at.inner, at.shared) : 0;
    return room_of_functions(at) + (at.rows * beside + of_memory + of_weight + 1) / 2;
}

// A sublayer, or a norm alone, and its tensors. There is room for the gradient of each bias, also where that is none,
// and of each matrix that learns. memory: what keys and values are made of by `shared`; none where they are made
// together with the queries, and lie behind them.
struct Call {
    const Sublayer *at;
    const void *shape;  // of attention
    const bf16 *norm, *norm_bias, *first, *first_bias, *last, *last_bias, *shared, *shared_bias, *memory, *mask;
    float *kept;
    bf16 *output;
    bf16 *of_norm, *of_norm_bias, *of_first, *of_first_bias, *of_last, *of_last_bias, *of_shared, *of_shared_bias;
    bf16 *of_memory;
};

namespace {

struct Layers {  // the linear ones
    Linear first, last, shared;

    Layers(const Call &call, const Sublayer &at)
        : first{call.first, call.first_bias, at.rows, at.width, at.inner},
          last{call.last, call.last_bias, at.rows, at.kind == ATTENDED ? at.context : at.inner, at.width},
          shared{call.shared, call.shared_bias, at.keys, at.width, at.shared} {}
};

void fed(const Call &call, Work &work, const Kept &kept, const Layers &by, const bf16 *x) {
    Around{call.norm, call.norm_bias}.there(work, kept, x, call.output, [&](const bf16 *x, bf16 *made) {
        by.first.there(work, x, kept.inner, true);
        drop_inner(work, kept.inner);
        by.last.there(work, kept.inner, made);
    });
}

// What dropout leaves of max(0, x) is 0 wherever that is, so it tells the gradient as much.
void fed_back(const Call &call, Work &work, const Kept &kept, const Layers &by, const bf16 *grad, const bf16 *x,
              bf16 *of_x) {
    bf16 *of_inner = work.take(work.at.inner);
    auto inside = [&](const bf16 *x, bf16 *grad, bf16 *of_x) {
        by.last.back(work, kept.inner, grad, nullptr, of_inner, call.of_last, call.of_last_bias);
        drop_inner(work, of_inner);
        by.first.back(work, x, of_inner, kept.inner, of_x, call.of_first, call.of_first_bias);
    };
    Around{call.norm, call.norm_bias}.back(work, kept, grad, x, of_x, call.of_norm, call.of_norm_bias, inside);
}

void attended(const Call &call, Work &work, const Kept &kept, const Layers &by, const bf16 *x) {
    const Sublayer &at = work.at;
    const bf16 *key = call.memory ? kept.shared : kept.inner + at.context;
    const bf16 *value = key + (call.memory ? at.shared : at.inner - at.context) / 2;
    Around{call.norm, call.norm_bias}.there(work, kept, x, call.output, [&](const bf16 *x, bf16 *made) {
        by.first.there(work, x, kept.inner);
        if (call.memory) by.shared.there(work, call.memory, kept.shared);
        forward_bf16(call.shape, kept.inner, key, value, call.mask, kept.context, kept.weights);
        by.last.there(work, kept.context, made);
    });
}

// adds: whether there is already a gradient of the memory, of other sublayers.
void attended_back(const Call &call, Work &work, const Kept &kept, const Layers &by, const bf16 *grad, const bf16 *x,
                   bf16 *of_x, int adds) {
    const Sublayer &at = work.at;
    bf16 *of_inner = work.take(at.inner), *of_context = work.take(at.context);
    bf16 *of_shared = work.take(at.keys, at.shared), *of_memory = work.take(at.keys, at.width);
    const int64_t width = (call.memory ? at.shared : at.inner - at.context) / 2;
    const bf16 *key = call.memory ? kept.shared : kept.inner + at.context;
    bf16 *of_key = call.memory ? of_shared : of_inner + at.context;
    auto inside = [&](const bf16 *x, bf16 *grad, bf16 *of_x) {
        by.last.back(work, kept.context, grad, nullptr, of_context, call.of_last, call.of_last_bias);
        backward_bf16(call.shape, kept.inner, key, key + width, call.mask, of_context, kept.weights, of_inner, of_key,
                      of_key + width);
        by.first.back(work, x, of_inner, nullptr, of_x, call.of_first, call.of_first_bias);
        if (!call.memory) return;
        const bool adds_up = adds && call.of_memory;
        bf16 *made = adds_up ? of_memory : call.of_memory;
        by.shared.back(work, call.memory, of_shared, nullptr, made, call.of_shared, call.of_shared_bias);
        if (adds_up) drop_bf16(made, call.of_memory, call.of_memory, at.keys * at.width, 0, 0, 1, at.threads);
    };
    Around{call.norm, call.norm_bias}.back(work, kept, grad, x, of_x, call.of_norm, call.of_norm_bias, inside);
}

}  // namespace

// One after the other. room: as much as the most of them needs.
extern "C" void sublayers_bf16(const Call *calls, int64_t n, const bf16 *x, float *room) {
    for (const Call *call = calls; call < calls + n; x = call++->output) {
        Work work(*call->at, room);
        const Kept kept(work.at, call->kept);
        const Layers by(*call, work.at);
        if (work.at.kind == NORMED)
            Around{call->norm, call->norm_bias}.norm(work, x, call->output, kept.moments);
        else
            (work.at.kind == FED ? fed : attended)(*call, work, kept, by, x);
    }
}

// adds: whether there is a gradient of the memory already. beside: room for the gradients of what goes from one to the
// next, of two at a time.
extern "C" void sublayers_back_bf16(const Call *calls, int64_t n, int adds, const bf16 *grad, const bf16 *x, bf16 *of_x,
                                    bf16 *beside, float *room) {
    for (int64_t i = n - 1; i >= 0; i--) {
        const Call &call = calls[i];
        Work work(*call.at, room);
        const Sublayer &at = work.at;
        const Kept kept(at, call.kept);
        const Layers by(call, at);
        const bf16 *given = i ? calls[i - 1].output : x;
        bf16 *made = i ? beside + (i - 1) % 2 * at.rows * at.width : of_x;
        if (at.kind == NORMED) {
            norm_back_bf16(given, call.norm, kept.moments, grad, nullptr, made, call.of_norm, call.of_norm_bias,
                           work.room, at.rows, at.width, at.centred, at.threads);
        } else if (at.kind == FED) {
            fed_back(call, work, kept, by, grad, given, made);
        } else {
            attended_back(call, work, kept, by, grad, given, made, adds);
            adds |= call.memory != nullptr;
        }
        grad = made;
    }
}
