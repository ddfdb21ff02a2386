// Lines cut by BPE-dropout with the draws of sampling.py, where it is explained. compiled.py calls it.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <new>

#include "generator.h"
#include "table.h"

namespace {

constexpr std::string_view SPACE = "\u2581";

struct Piece { double score; int64_t size; int32_t id; bool is_frozen; };
struct Word { int64_t first, size, merges; };  // its ids are among those of all words
struct Part { int64_t begin, end; const Word *word; };
struct Symbol { int64_t begin, end; int32_t before, after; const Piece *piece; };  // empty once it is part of another
struct Pair { double score; int32_t left, right; int64_t end; const Piece *merged; };

bool comes_later(const Pair &one, const Pair &other) {
    return one.score < other.score || (one.score == other.score && one.left > other.left);
}

int64_t gap(double uniform, double scale) {
    const double drawn = std::log(1 - uniform) / scale;
    return drawn < 0x1p63 ? (int64_t)drawn : INT64_MAX;
}

// Python takes a string and its SHA-512 for one number.
void read_key(const uint8_t *seed, int64_t size, std::vector<uint32_t> &key) {
    key.assign((size + 3) / 4, 0);
    for (int64_t i = 0; i < size; i++) key[i / 4] |= (uint32_t)seed[size - 1 - i] << i % 4 * 8;
    while (key.size() > 1 && !key.back()) key.pop_back();
}

}  // namespace

struct Model {
    Table<Piece> pieces;
    Table<Word> words;
    std::vector<int32_t> bytes, ids;  // of byte pieces, if there are any; of all words
    std::vector<int64_t> frozen_sizes;  // each once, the largest first
    int64_t longest = 0;
    int32_t unk;
    bool has_spans;
    // Of a line, or a word:
    Text text;
    std::vector<Part> parts;
    std::vector<Symbol> symbols;
    std::vector<Pair> agenda;
    std::vector<uint32_t> key;

    void part(std::string_view line) {
        parts.clear();
        text.read(line);
        for (size_t begin = 0, end; begin < line.size(); begin = end) {
            end = begin;
            while (line.substr(end, SPACE.size()) == SPACE) end += SPACE.size();
            end = has_spans ? line.size() : std::min(line.find(SPACE, end), line.size());
            parts.push_back({(int64_t)begin, (int64_t)end, words.find(text, begin, end)});
        }
    }

    const Piece *piece(int64_t begin, int64_t end) const {
        return end - begin > longest ? nullptr : pieces.find(text, begin, end);
    }

    const Piece *frozen_at(int64_t begin, int64_t end) const {
        for (const int64_t size : frozen_sizes) {
            const Piece *found = begin + size > end ? nullptr : piece(begin, begin + size);
            if (found && found->is_frozen) return found;
        }
        return nullptr;
    }

    void split(int64_t begin, int64_t end) {
        symbols.clear();
        while (begin < end) {
            const Piece *frozen = frozen_at(begin, end);
            const uint8_t first = text.bytes[begin];
            const int64_t size = frozen ? frozen->size : 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0);
            const int64_t to = std::min(begin + size, end);
            const int32_t i = symbols.size();
            symbols.push_back({begin, to, i - 1, to < end ? i + 1 : -1, frozen});
            begin = to;
        }
    }

    void plan(int32_t left, int32_t right) {
        if (left < 0 || right < 0) return;
        const Symbol &one = symbols[left], &other = symbols[right];
        if ((one.piece && one.piece->is_frozen) || (other.piece && other.piece->is_frozen)) return;
        if (const Piece *merged = piece(one.begin, other.end)) {
            agenda.push_back({merged->score, left, right, other.end, merged});
            std::push_heap(agenda.begin(), agenda.end(), comes_later);
        }
    }

    // left: merges until one is skipped; draw(): merges until the next.
    template <typename F>
    void merge(int64_t begin, int64_t end, int64_t &left, F draw) {
        split(begin, end);
        for (size_t i = 1; i < symbols.size(); i++) plan(i - 1, i);
        while (!agenda.empty()) {
            std::pop_heap(agenda.begin(), agenda.end(), comes_later);
            const Pair best = agenda.back();
            agenda.pop_back();
            Symbol &one = symbols[best.left], &other = symbols[best.right];
            if (one.end != other.begin || other.end != best.end) continue;  // one has been merged with another since
            if (left == 0) {
                left = draw();
                continue;
            }
            left--;
            one.end = best.end, one.piece = best.merged, one.after = other.after;
            other.end = other.begin;
            if (one.after >= 0) symbols[one.after].before = best.left;
            plan(one.before, best.left);
            plan(best.left, one.after);
        }
    }

    // What runs of unknown characters are but one of.
    int32_t *put(int32_t id, int32_t *to, const int32_t *line) const {
        if (id != unk || to == line || to[-1] != unk) *to++ = id;
        return to;
    }

    int32_t *put_symbols(int32_t *to, const int32_t *line) const {
        for (const Symbol &symbol : symbols) {
            if (symbol.begin == symbol.end) continue;
            if (const Piece *known = symbol.piece ? symbol.piece : piece(symbol.begin, symbol.end)) {
                to = put(known->id, to, line);
            } else if (bytes.empty()) {
                to = put(unk, to, line);
            } else {
                for (int64_t i = symbol.begin; i < symbol.end; i++) to = put(bytes[(uint8_t)text.bytes[i]], to, line);
            }
        }
        return to;
    }
};

extern "C" {

// Null where memory lacks.
Model *bpe_make(const char *strings, const int64_t *ends, const int32_t *ids, const double *scores,
                const uint8_t *frozen, int64_t n, const int32_t *bytes, int32_t unk, int has_spans) try {
    auto model = std::make_unique<Model>();
    model->unk = unk, model->has_spans = has_spans;
    if (bytes) model->bytes.assign(bytes, bytes + 256);
    for (int64_t i = 0, first = 0; i < n; first = ends[i++]) {
        const int64_t size = ends[i] - first;
        model->text.read({strings + first, (size_t)size});
        model->pieces.add(model->text, {scores[i], size, ids[i], (bool)frozen[i]});
        model->longest = std::max(model->longest, size);
        if (frozen[i]) model->frozen_sizes.push_back(size);
    }
    auto &sizes = model->frozen_sizes;
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return model.release();
} catch (const std::bad_alloc &) {
    return nullptr;
}

void bpe_free(Model *model) { delete model; }

// A word that is not known yet. ids: SentencePiece's, which it keeps at any rate where all merges give others. -1 where
// memory lacks; the model is of no use then.
int64_t bpe_learn(Model *model, const char *word, int64_t size, const int32_t *ids, int64_t n) try {
    std::vector<int32_t> own(size);
    int64_t left = INT64_MAX;
    model->text.read({word, (size_t)size});
    model->merge(0, size, left, [&] { return left; });
    own.resize(model->put_symbols(own.data(), own.data()) - own.data());
    const bool is_same = std::equal(own.begin(), own.end(), ids, ids + n);
    model->words.add(model->text, {(int64_t)model->ids.size(), n, is_same ? INT64_MAX - left : 0});
    model->ids.insert(model->ids.end(), ids, ids + n);
    return 0;
} catch (const std::bad_alloc &) {
    return -1;
}

// Cuts lines and returns 0; or how many words are not known yet, and in ids where they begin and end; -1 where memory
// lacks. seeds: what Python takes for numbers. scale: log(1 - rate). ids has room for two for each byte of the text.
int64_t bpe_cut(Model *model, const char *text, const int64_t *ends, int64_t n, const uint8_t *seeds,
                const int64_t *seed_ends, double scale, int32_t *ids, int64_t *id_ends) try {
    int64_t unknown = 0, first = 0, seed = 0;
    int32_t *to = ids;
    for (int64_t i = 0; i < n; first = ends[i], seed = seed_ends[i], i++) {
        model->part({text + first, (size_t)(ends[i] - first)});
        for (const Part &part : model->parts) {
            if (part.word) continue;
            ids[2 * unknown] = first + part.begin;
            ids[2 * unknown++ + 1] = first + part.end;
        }
        if (unknown) continue;
        read_key(seeds + seed, seed_ends[i] - seed, model->key);
        Generator generator(model->key.data(), model->key.size());
        const auto draw = [&] { return gap(generator.uniform(), scale); };
        const int32_t *line = to;
        int64_t left = draw();
        for (const Part &part : model->parts) {
            const Word &word = *part.word;
            if (left < word.merges) {
                model->merge(part.begin, part.end, left, draw);
                to = model->put_symbols(to, line);
            } else {
                left -= word.merges;
                for (int64_t x = 0; x < word.size; x++) to = model->put(model->ids[word.first + x], to, line);
            }
        }
        id_ends[i] = to - ids;
    }
    return unknown;
} catch (const std::bad_alloc &) {
    return -1;
}

}  // extern "C"
