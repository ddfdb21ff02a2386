// Python's random.Random of a string: MT19937 (Matsumoto & Nishimura 1998). Words of its state are made when drawn.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

class Generator {
    static constexpr uint32_t N = 624, MIDDLE = 397;
    using State = std::array<uint32_t, N>;

    State state;
    uint32_t at = 0;

    static constexpr uint32_t mixed(uint32_t before) { return before ^ (before >> 30); }

    static constexpr State unseeded() {
        State made{19650218};
        for (uint32_t i = 1; i < N; i++) made[i] = 1812433253 * mixed(made[i - 1]) + i;
        return made;
    }

    uint32_t word() {
        const uint32_t next = at + 1 < N ? at + 1 : 0, other = at + MIDDLE < N ? at + MIDDLE : at + MIDDLE - N;
        const uint32_t both = (state[at] & 0x80000000) | (state[next] & 0x7fffffff);
        uint32_t made = state[at] = state[other] ^ (both >> 1) ^ (both & 1 ? 0x9908b0df : 0);
        at = next;
        made ^= made >> 11;
        made ^= (made << 7) & 0x9d2c5680;
        made ^= (made << 15) & 0xefc60000;
        return made ^ (made >> 18);
    }

  public:
    // key: a number in words of 32 bits, the lowest first and the highest not 0.
    Generator(const uint32_t *key, uint32_t size) {
        static constexpr State FIRST = unseeded();
        state = FIRST;
        uint32_t i = 1, before = state[0];
        const auto next = [&](uint32_t made) {
            before = state[i] = made;
            if (++i == N) state[0] = before, i = 1;
        };
        for (uint32_t k = std::max(N, size), j = 0; k; k--, j = j + 1 < size ? j + 1 : 0)
            next((state[i] ^ (mixed(before) * 1664525)) + (key[j] + j));
        for (uint32_t k = N - 1; k; k--) next((state[i] ^ (mixed(before) * 1566083941)) - i);
        state[0] = 0x80000000;
    }

    double uniform() {
        const double high = word() >> 5;
        return (high * 67108864 + (word() >> 6)) / 9007199254740992;
    }
};
