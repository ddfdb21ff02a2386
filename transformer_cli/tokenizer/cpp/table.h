// Values that are found by strings, among them parts of a text.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

constexpr uint64_t BASE = 0x9E3779B97F4A7C15;

// A text by whose hashes those of its parts are known: polynomials of BASE.
class Text {
    std::vector<uint64_t> hashes = {0}, powers = {1};

  public:
    std::string_view bytes;

    void read(std::string_view text) {
        bytes = text;
        hashes.resize(text.size() + 1);
        for (size_t i = 0; i < text.size(); i++) hashes[i + 1] = hashes[i] * BASE + (uint8_t)text[i] + 1;
        while (powers.size() <= text.size()) powers.push_back(powers.back() * BASE);
    }
    uint64_t hash(int64_t begin, int64_t end) const { return hashes[end] - hashes[begin] * powers[end - begin]; }
};

template <typename T>
class Table {
    struct Slot {
        uint32_t mark = 0;  // of a hash
        int32_t number = -1;
    };
    struct Entry {
        uint64_t hash;
        int64_t begin, size;  // of its string
        T value;
    };
    std::vector<Slot> slots = std::vector<Slot>(16);
    std::vector<Entry> entries;
    std::vector<char> strings;

    // Where it is, or would be.
    size_t place(uint64_t hash, std::string_view string) const {
        for (size_t i = hash * BASE >> 32;; i++) {
            const Slot &slot = slots[i &= slots.size() - 1];
            if (slot.number < 0) return i;
            if (slot.mark == (uint32_t)hash && string_of(entries[slot.number]) == string) return i;
        }
    }

    std::string_view string_of(const Entry &entry) const { return {strings.data() + entry.begin, (size_t)entry.size}; }

  public:
    // Valid until something is added.
    const T *find(const Text &text, int64_t begin, int64_t end) const {
        const Slot &slot = slots[place(text.hash(begin, end), text.bytes.substr(begin, end - begin))];
        return slot.number < 0 ? nullptr : &entries[slot.number].value;
    }

    // By all of a text, which is not there yet.
    void add(const Text &text, const T &value) {
        const uint64_t hash = text.hash(0, text.bytes.size());
        entries.push_back({hash, (int64_t)strings.size(), (int64_t)text.bytes.size(), value});
        strings.insert(strings.end(), text.bytes.begin(), text.bytes.end());
        const bool is_full = entries.size() * 2 > slots.size();
        if (is_full) slots.assign(slots.size() * 2, Slot{});
        for (size_t i = is_full ? 0 : entries.size() - 1; i < entries.size(); i++)
            slots[place(entries[i].hash, string_of(entries[i]))] = {(uint32_t)entries[i].hash, (int32_t)i};
    }
};
