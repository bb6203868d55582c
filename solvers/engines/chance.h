/* Chance that is the same on any machine, for `anneal.c` and `exchange.c`: xorshift64*, from a state that is not 0. */
#pragma once
#include <stdint.h>

static inline uint64_t next(uint64_t *random)
{
    uint64_t x = *random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    *random = x;
    return x * 2685821657736338717ULL;
}

static inline int64_t below(uint64_t *random, int64_t n) { return (int64_t)((next(random) >> 11) % (uint64_t)n); }

static inline double uniform(uint64_t *random) { return (double)(next(random) >> 11) * (1.0 / 9007199254740992.0); }
