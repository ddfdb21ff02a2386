// A sublayer inside its residual, there and back, by one call: the functions of the other files one after the other,
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
void linear_back_bf16(bf16 *grad, const bf16 *made, const bf16 *bias, bf16 *sums, float *room, bf16 *turned,
                      int64_t rows, int64_t width, int threads);
void forward_bf16(const void *shape, const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *mask,
                  bf16 *output, float *weights);
void backward_bf16(const void *shape, const bf16 *query, const bf16 *key, const bf16 *value, const bf16 *mask,
                   const bf16 *grad, const float *weights, bf16 *grad_query, bf16 *grad_key, bf16 *grad_value);
}

namespace {

struct Sublayer {  // as sublayers.py lays it out
    int64_t rows, width;
    int64_t inner, context;  // of what the first linear layer makes; of what the last one of attention takes, else 0
    int64_t weights;         // of attention
    int64_t threads;
    uint64_t seed, inner_seed;
    uint32_t share, inner_share;  // of dropout, in 2^-16, outside and inside
    float eps;
    int32_t centred, first;  // the norm: whether it is centred, and whether it comes first
};

inline int64_t widest(const Sublayer &at) { return std::max({at.width, at.inner, at.context}); }

// Numbers in fp32 that any of the functions works in.
int64_t room_of_functions(const Sublayer &at) {
    const int64_t product = std::max(product_room(at.rows, widest(at)), product_room(widest(at), at.rows));
    return std::max({at.threads * product, norm_room(at.rows, at.width), linear_room(at.rows, widest(at))});
}

// What they work in, one after the other, and what lies behind that.
struct Work {
    const Sublayer &at;
    float *room;
    bf16 *rest;

    Work(const Sublayer &at, float *room) : at(at), room(room), rest((bf16 *)(room + room_of_functions(at))) {}

    bf16 *take(int64_t width) {
        bf16 *taken = rest;
        rest += at.rows * width;
        return taken;
    }
};

// What the way back needs of the way there. beside: what is normed, or comes of it: (rows, width).
struct Kept {
    float *moments, *weights;
    bf16 *beside, *inner, *context;

    Kept(const Sublayer &at, float *place) : moments(place), weights(moments + 3 * at.rows) {
        beside = (bf16 *)(weights + at.weights);
        inner = beside + at.rows * at.width;
        context = inner + at.rows * at.inner;
    }
};

// Of (rows, width), by a share of 0 of none.
void drop(const Work &work, const bf16 *x, const bf16 *residual, bf16 *made, int64_t width, uint64_t seed,
          uint32_t share) {
    drop_bf16(x, residual, made, work.at.rows * width, seed, share, 65536.0 / (65536 - share), work.at.threads);
}

struct Linear {
    const bf16 *weight, *bias;
    int64_t inputs, outputs;

    void there(const Work &work, const bf16 *x, bf16 *made, bool rectifies = false) const {
        multiply_bf16(x, weight, bias, nullptr, nullptr, made, (uint32_t *)work.room, work.at.rows, inputs, outputs,
                      true, rectifies, work.at.threads);
    }

    // made: what it made by max(0, x), if it did. of_weight: none where that does not learn.
    void back(const Work &work, const bf16 *x, bf16 *grad, const bf16 *made, bf16 *of_x, bf16 *of_weight,
              bf16 *of_bias) const {
        const int64_t rows = work.at.rows, threads = work.at.threads;
        uint32_t *room = (uint32_t *)work.room;
        bf16 *turned = work.rest;  // (outputs, rows)
        linear_back_bf16(grad, made, bias, of_bias, work.room, of_weight ? turned : nullptr, rows, outputs, threads);
        multiply_bf16(grad, weight, nullptr, nullptr, nullptr, of_x, room, rows, outputs, inputs, false, false,
                      threads);
        if (of_weight)
            multiply_bf16(turned, x, nullptr, nullptr, nullptr, of_weight, room, outputs, rows, inputs, false, false,
                          threads);
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
        bf16 *made = work.take(work.at.width);
        if (first) norm(work, x, kept.beside, kept.moments);
        inside(first ? kept.beside : x, made);
        drop(work, made, x, first ? output : kept.beside, work.at.width, work.at.seed, work.at.share);
        if (!first) norm(work, kept.beside, output, kept.moments);
    }

    template <typename Inside>
    void back(Work &work, const Kept &kept, const bf16 *grad, const bf16 *x, bf16 *of_x, bf16 *of_weight, bf16 *of_bias,
              Inside inside) const {
        const Sublayer &at = work.at;
        bf16 *of_made = work.take(at.width), *of_inside = work.take(at.width);
        const bf16 *normed = at.first ? x : kept.beside, *of_norm = at.first ? of_inside : grad;
        auto norm_back = [&] {
            norm_back_bf16(normed, weight, kept.moments, of_norm, at.first ? grad : nullptr, of_x, of_weight, of_bias,
                           work.room, at.rows, at.width, at.centred, at.threads);
        };
        if (!at.first) norm_back();
        const bf16 *of_sum = at.first ? grad : of_x;
        if (at.share) drop(work, of_sum, nullptr, of_made, at.width, at.seed, at.share);
        inside(at.first ? kept.beside : x, (bf16 *)(at.share ? of_made : of_sum), of_inside);
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
    return 3 * at.rows + at.weights + (at.rows * (at.width + at.inner + at.context) + 1) / 2;
}

extern "C" int64_t sublayer_room(const Sublayer &at, int back) {
    const int64_t beside = back ? 2 * at.width + at.inner + at.context + widest(at) : at.width;
    return room_of_functions(at) + (at.rows * beside + 1) / 2;
}

extern "C" void fed_bf16(const Sublayer &at, const bf16 *x, const bf16 *norm, const bf16 *norm_bias, const bf16 *up,
                         const bf16 *up_bias, const bf16 *down, const bf16 *down_bias, float *place, bf16 *output,
                         float *room) {
    Work work(at, room);
    const Kept kept(at, place);
    Around{norm, norm_bias}.there(work, kept, x, output, [&](const bf16 *x, bf16 *made) {
        Linear{up, up_bias, at.width, at.inner}.there(work, x, kept.inner, true);
        drop_inner(work, kept.inner);
        Linear{down, down_bias, at.inner, at.width}.there(work, kept.inner, made);
    });
}

// What dropout leaves of max(0, x) is 0 wherever that is, so it tells the gradient as much.
extern "C" void fed_back_bf16(const Sublayer &at, const bf16 *grad, const bf16 *x, const bf16 *norm, const bf16 *up,
                              const bf16 *up_bias, const bf16 *down, const bf16 *down_bias, float *place, bf16 *of_x,
                              bf16 *of_norm, bf16 *of_norm_bias, bf16 *of_up, bf16 *of_up_bias, bf16 *of_down,
                              bf16 *of_down_bias, float *room) {
    Work work(at, room);
    const Kept kept(at, place);
    bf16 *of_inner = work.take(at.inner);
    Around{norm}.back(work, kept, grad, x, of_x, of_norm, of_norm_bias, [&](const bf16 *x, bf16 *grad, bf16 *of_x) {
        Linear{down, down_bias, at.inner, at.width}.back(work, kept.inner, grad, nullptr, of_inner, of_down,
                                                         of_down_bias);
        drop_inner(work, of_inner);
        Linear{up, up_bias, at.width, at.inner}.back(work, x, of_inner, kept.inner, of_x, of_up, of_up_bias);
    });
}

// key, value: none where they are made together with the queries, and lie behind them.
extern "C" void attended_bf16(const Sublayer &at, const void *shape, const bf16 *x, const bf16 *norm,
                              const bf16 *norm_bias, const bf16 *in, const bf16 *in_bias, const bf16 *out,
                              const bf16 *out_bias, const bf16 *key, const bf16 *value, const bf16 *mask, float *place,
                              bf16 *output, float *room) {
    Work work(at, room);
    const Kept kept(at, place);
    if (!key) key = kept.inner + at.context, value = key + (at.inner - at.context) / 2;
    Around{norm, norm_bias}.there(work, kept, x, output, [&](const bf16 *x, bf16 *made) {
        Linear{in, in_bias, at.width, at.inner}.there(work, x, kept.inner);
        forward_bf16(shape, kept.inner, key, value, mask, kept.context, kept.weights);
        Linear{out, out_bias, at.context, at.width}.there(work, kept.context, made);
    });
}

extern "C" void attended_back_bf16(const Sublayer &at, const void *shape, const bf16 *grad, const bf16 *x,
                                   const bf16 *norm, const bf16 *in, const bf16 *in_bias, const bf16 *out,
                                   const bf16 *out_bias, const bf16 *key, const bf16 *value, const bf16 *mask,
                                   float *place, bf16 *of_x, bf16 *of_norm, bf16 *of_norm_bias, bf16 *of_in,
                                   bf16 *of_in_bias, bf16 *of_out, bf16 *of_out_bias, bf16 *of_key, bf16 *of_value,
                                   float *room) {
    Work work(at, room);
    const Kept kept(at, place);
    bf16 *of_inner = work.take(at.inner), *of_context = work.take(at.context);
    if (!key) {
        const int64_t shared = (at.inner - at.context) / 2;
        key = kept.inner + at.context, value = key + shared;
        of_key = of_inner + at.context, of_value = of_key + shared;
    }
    Around{norm}.back(work, kept, grad, x, of_x, of_norm, of_norm_bias, [&](const bf16 *x, bf16 *grad, bf16 *of_x) {
        Linear{out, out_bias, at.context, at.width}.back(work, kept.context, grad, nullptr, of_context, of_out,
                                                         of_out_bias);
        backward_bf16(shape, kept.inner, key, value, mask, of_context, kept.weights, of_inner, of_key, of_value);
        Linear{in, in_bias, at.width, at.inner}.back(work, x, of_inner, nullptr, of_x, of_in, of_in_bias);
    });
}
