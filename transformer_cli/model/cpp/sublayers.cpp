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

int64_t room_of_functions(int64_t rows, int64_t width, int64_t widest, int64_t threads) {
    const int64_t product = std::max(product_room(rows, widest), product_room(widest, rows));
    return std::max({threads * product, norm_room(rows, width), linear_room(rows, widest)});
}

// What all functions work in, one after the other, and what lies behind that; and by how many threads.
struct Work {
    int64_t rows, threads;
    float *room;
    bf16 *rest;

    Work(float *room, int64_t rows, int64_t width, int64_t widest, int64_t threads)
        : rows(rows), threads(threads), room(room),
          rest((bf16 *)(room + room_of_functions(rows, width, widest, threads))) {}

    bf16 *take(int64_t width) {
        bf16 *taken = rest;
        rest += rows * width;
        return taken;
    }
};

struct Linear {
    const bf16 *weight, *bias;
    int64_t inputs, outputs;

    void there(const Work &work, const bf16 *x, bf16 *made, bool rectifies = false) const {
        multiply_bf16(x, weight, bias, nullptr, nullptr, made, (uint32_t *)work.room, work.rows, inputs, outputs, true,
                      rectifies, work.threads);
    }

    // made: what it made by max(0, x), if it did. of_weight: none where that does not learn.
    void back(const Work &work, const bf16 *x, bf16 *grad, const bf16 *made, bf16 *of_x, bf16 *of_weight,
              bf16 *of_bias) const {
        uint32_t *room = (uint32_t *)work.room;
        bf16 *turned = work.rest;  // (outputs, rows)
        linear_back_bf16(grad, made, bias, of_bias, work.room, of_weight ? turned : nullptr, work.rows, outputs,
                         work.threads);
        multiply_bf16(grad, weight, nullptr, nullptr, nullptr, of_x, room, work.rows, outputs, inputs, false, false,
                      work.threads);
        if (of_weight)
            multiply_bf16(turned, x, nullptr, nullptr, nullptr, of_weight, room, outputs, work.rows, inputs, false,
                          false, work.threads);
    }
};

struct Dropout {
    uint64_t seed;
    uint32_t share;  // in 2^-16

    void operator()(const Work &work, const bf16 *x, const bf16 *residual, bf16 *output, int64_t width) const {
        drop_bf16(x, residual, output, work.rows * width, seed, share, 65536.0 / (65536 - share), work.threads);
    }

    // The gradient of what was dropped: that of the output, where nothing was.
    const bf16 *back(const Work &work, const bf16 *grad, bf16 *made, int64_t width) const {
        if (share == 0) return grad;
        (*this)(work, grad, nullptr, made, width);
        return made;
    }
};

// x + dropout(sublayer(norm(x))) where the norm comes first, else norm(x + dropout(sublayer(x))).
struct Around {
    const bf16 *weight, *bias;
    int64_t width;
    bool first, centred;
    Dropout dropout;

    // beside: what is normed, or comes of it: (rows, width).
    template <typename Sublayer>
    void there(Work &work, const bf16 *x, bf16 *beside, float *moments, bf16 *output, float eps,
               Sublayer sublayer) const {
        bf16 *made = work.take(width);
        if (first) norm_bf16(x, weight, bias, beside, moments, work.rows, width, eps, centred, work.threads);
        sublayer(first ? beside : x, made);
        dropout(work, made, x, first ? output : beside, width);
        if (!first) norm_bf16(beside, weight, bias, output, moments, work.rows, width, eps, centred, work.threads);
    }

    template <typename Sublayer>
    void back(Work &work, const bf16 *grad, const bf16 *x, const bf16 *beside, const float *moments, bf16 *of_x,
              bf16 *of_weight, bf16 *of_bias, Sublayer sublayer) const {
        bf16 *of_made = work.take(width), *of_inside = work.take(width);
        auto norm_back = [&](const bf16 *normed, const bf16 *grad, const bf16 *beside, bf16 *made) {
            norm_back_bf16(normed, weight, moments, grad, beside, made, of_weight, of_bias, work.room, work.rows, width,
                           centred, work.threads);
        };
        if (first) {
            sublayer(beside, dropout.back(work, grad, of_made, width), of_inside);
            norm_back(x, of_inside, grad, of_x);
        } else {
            norm_back(beside, grad, nullptr, of_x);
            sublayer(x, dropout.back(work, of_x, of_made, width), of_inside);
            Dropout{0, 0}(work, of_inside, of_x, of_x, width);  // nothing but their sum
        }
    }
};

}  // namespace

// Numbers in fp32 that one of them works in. inner, other: the widths of what linear layers make and take inside.
extern "C" int64_t sublayer_room(int64_t rows, int64_t width, int64_t inner, int64_t other, int back, int threads) {
    const int64_t widest = std::max({width, inner, other});
    const int64_t beside = back ? 2 * width + inner + other + widest : width;
    return room_of_functions(rows, width, widest, threads) + (rows * beside + 1) / 2;
}

extern "C" void fed_bf16(const bf16 *x, const bf16 *norm, const bf16 *norm_bias, const bf16 *up, const bf16 *up_bias,
                         const bf16 *down, const bf16 *down_bias, bf16 *beside, float *moments, bf16 *inner, bf16 *output,
                         float *room, int64_t rows, int64_t width, int64_t inner_width, float eps,
                         int centred, int first, uint64_t inner_seed, uint32_t inner_share, uint64_t seed,
                         uint32_t share, int threads) {
    Work work(room, rows, width, std::max(width, inner_width), threads);
    const Around around{norm, norm_bias, width, first != 0, centred != 0, {seed, share}};
    around.there(work, x, beside, moments, output, eps, [&](const bf16 *inside, bf16 *made) {
        Linear{up, up_bias, width, inner_width}.there(work, inside, inner, true);
        if (inner_share) Dropout{inner_seed, inner_share}(work, inner, nullptr, inner, inner_width);
        Linear{down, down_bias, inner_width, width}.there(work, inner, made);
    });
}

// What dropout leaves of max(0, x) is 0 wherever that is, so it tells the gradient as much.
extern "C" void fed_back_bf16(const bf16 *grad, const bf16 *x, const bf16 *norm, const bf16 *up, const bf16 *up_bias,
                              const bf16 *down, const bf16 *down_bias, const bf16 *beside, const float *moments,
                              const bf16 *inner, bf16 *of_x, bf16 *of_norm, bf16 *of_norm_bias, bf16 *of_up,
                              bf16 *of_up_bias, bf16 *of_down, bf16 *of_down_bias, float *room, int64_t rows, int64_t width,
                              int64_t inner_width, int centred, int first, uint64_t inner_seed, uint32_t inner_share,
                              uint64_t seed, uint32_t share, int threads) {
    Work work(room, rows, width, std::max(width, inner_width), threads);
    const Around around{norm, nullptr, width, first != 0, centred != 0, {seed, share}};
    around.back(work, grad, x, beside, moments, of_x, of_norm, of_norm_bias,
                [&](const bf16 *inside, const bf16 *grad, bf16 *of_inside) {
                    const Linear last{down, down_bias, inner_width, width};
                    bf16 *of_inner = work.take(inner_width);
                    last.back(work, inner, (bf16 *)grad, nullptr, of_inner, of_down, of_down_bias);
                    if (inner_share) Dropout{inner_seed, inner_share}(work, of_inner, nullptr, of_inner, inner_width);
                    const Linear early{up, up_bias, width, inner_width};
                    early.back(work, inside, of_inner, inner, of_inside, of_up, of_up_bias);
                });
}

// key, value: none where they are projected with the queries.
extern "C" void attended_bf16(const void *shape, const bf16 *x, const bf16 *norm, const bf16 *norm_bias, const bf16 *in,
                              const bf16 *in_bias, const bf16 *out, const bf16 *out_bias, const bf16 *key,
                              const bf16 *value, const bf16 *mask, bf16 *beside, float *moments, bf16 *projected,
                              float *weights, bf16 *context, bf16 *output, float *room, int64_t rows,
                              int64_t width, int64_t projected_width, int64_t context_width, float eps, int centred,
                              int first, uint64_t seed, uint32_t share, int threads) {
    Work work(room, rows, width, std::max({width, projected_width, context_width}), threads);
    const Around around{norm, norm_bias, width, first != 0, centred != 0, {seed, share}};
    if (!key) key = projected + context_width, value = key + (projected_width - context_width) / 2;
    around.there(work, x, beside, moments, output, eps, [&](const bf16 *inside, bf16 *made) {
        Linear{in, in_bias, width, projected_width}.there(work, inside, projected);
        forward_bf16(shape, projected, key, value, mask, context, weights);
        Linear{out, out_bias, context_width, width}.there(work, context, made);
    });
}

extern "C" void attended_back_bf16(const void *shape, const bf16 *grad, const bf16 *x, const bf16 *norm, const bf16 *in,
                                   const bf16 *in_bias, const bf16 *out, const bf16 *out_bias, const bf16 *key,
                                   const bf16 *value, const bf16 *mask, const bf16 *beside, const float *moments,
                                   const bf16 *projected, const float *weights, const bf16 *context, bf16 *of_x,
                                   bf16 *of_norm, bf16 *of_norm_bias, bf16 *of_in, bf16 *of_in_bias, bf16 *of_out,
                                   bf16 *of_out_bias, bf16 *of_key, bf16 *of_value,
                                   float *room, int64_t rows,
                                   int64_t width, int64_t projected_width, int64_t context_width, int centred,
                                   int first, uint64_t seed, uint32_t share, int threads) {
    Work work(room, rows, width, std::max({width, projected_width, context_width}), threads);
    const Around around{norm, nullptr, width, first != 0, centred != 0, {seed, share}};
    bf16 *of_projected = work.take(projected_width), *of_context = work.take(context_width);
    if (!key) {
        const int64_t shared_width = (projected_width - context_width) / 2;
        key = projected + context_width, value = key + shared_width;
        of_key = of_projected + context_width, of_value = of_key + shared_width;
    }
    around.back(work, grad, x, beside, moments, of_x, of_norm, of_norm_bias,
                [&](const bf16 *inside, const bf16 *grad, bf16 *of_inside) {
                    const Linear last{out, out_bias, context_width, width};
                    last.back(work, context, (bf16 *)grad, nullptr, of_context, of_out, of_out_bias);
                    backward_bf16(shape, projected, key, value, mask, of_context, weights, of_projected, of_key,
                                  of_value);
                    const Linear early{in, in_bias, width, projected_width};
                    early.back(work, inside, of_projected, nullptr, of_inside, of_in, of_in_bias);
                });
}
