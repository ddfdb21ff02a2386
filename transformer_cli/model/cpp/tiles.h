// Products in bf16 by tiles (Intel AMX): registers of 16 rows of 64 bytes, of which one instruction multiplies two, for
// panels.h. Of 32 inputs each sum is made before it is added to those before, whatever the rows are.

#pragma once

#include <algorithm>

#include "registers.h"

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define TX_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr long TILE = 16, TILE_INPUTS = 32;

#if defined(TX_TILES)

// Whether the system lets this process have them: it wants to be asked (Linux: ARCH_REQ_XCOMP_PERM, XTILEDATA).
inline bool has_tiles() {
    static const bool has = !syscall(SYS_arch_prctl, 0x1023, 18);
    return has;
}

// Two by two tiles of sums, 0 and 1 above 2 and 3, of two tiles of rows, 4 and 5, and two of columns, 6 and 7. They are
// the thread's own, until it gives them back.
class Tiles {
   public:
    ~Tiles() { _tile_release(); }

    // A block of up to 32 rows of a, each `step` numbers long, by 32 columns of a panel: sums become the products, or
    // where it adds theirs and those. Rows of the panel, and of sums, are so many numbers apart. last: what is behind
    // the whole tiles of inputs, of a and the panel, with zeros behind it; none where nothing is.
    void multiply(const uint16_t *a, long step, long rows, const uint32_t *panel, long inputs, const uint16_t *last_a,
                  const uint32_t *last, float *sums, long apart, bool adds) {
        shape(rows);
        rows > TILE ? multiply<true>(a, step, panel, inputs, last_a, last, sums, apart, adds)
                    : multiply<false>(a, step, panel, inputs, last_a, last, sums, apart, adds);
    }

   private:
    struct alignas(64) Shapes {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
    };

    long shaped = 0;

    void shape(long rows) {
        if (shaped == rows) return;
        Shapes shapes;
        for (int above : {0, 1, 4}) shapes.rows[above] = std::min(rows, TILE);
        for (int below : {2, 3, 5}) shapes.rows[below] = rows > TILE ? rows - TILE : TILE;
        // What follows reads memory, of which the compiler is not told.
        asm volatile("" ::"m"(shapes) : "memory");
        _tile_loadconfig(&shapes);
        shaped = rows;
    }

    template <bool BOTH>
    static void add(const uint16_t *a, long step, const uint32_t *panel, long apart) {
        _tile_loadd(6, panel, 4 * apart);
        _tile_loadd(4, a, 2 * step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel + TILE, 4 * apart);
        _tile_dpbf16ps(1, 4, 7);
        if (BOTH) {
            _tile_loadd(5, a + TILE * step, 2 * step);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }

    template <bool BOTH>
    void multiply(const uint16_t *a, long step, const uint32_t *panel, long inputs, const uint16_t *last_a,
                  const uint32_t *last, float *sums, long apart, bool adds) const {
        asm volatile("" ::: "memory");
        if (adds) {
            _tile_loadd(0, sums, 4 * apart);
            _tile_loadd(1, sums + TILE, 4 * apart);
            if (BOTH) _tile_loadd(2, sums + TILE * apart, 4 * apart);
            if (BOTH) _tile_loadd(3, sums + TILE * apart + TILE, 4 * apart);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            if (BOTH) _tile_zero(2);
            if (BOTH) _tile_zero(3);
        }
        for (long i = 0; i + TILE_INPUTS <= inputs; i += TILE_INPUTS)
            add<BOTH>(a + i, step, panel + i / 2 * apart, apart);
        if (last) add<BOTH>(last_a, TILE_INPUTS, last, apart);
        _tile_stored(0, sums, 4 * apart);
        _tile_stored(1, sums + TILE, 4 * apart);
        if (BOTH) _tile_stored(2, sums + TILE * apart, 4 * apart);
        if (BOTH) _tile_stored(3, sums + TILE * apart + TILE, 4 * apart);
    }
};

#else

inline bool has_tiles() { return false; }

struct Tiles {
    void multiply(const uint16_t *, long, long, const uint32_t *, long, const uint16_t *, const uint32_t *, float *,
                  long, bool) {}
};

#endif

}  // namespace
