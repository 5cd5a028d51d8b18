/* SplitMix64 (Steele, Lea & Flood 2014), the one source of random bits; `recombine.random` defines what is drawn from it. */
#ifndef RECOMBINE_SPLITMIX_H
#define RECOMBINE_SPLITMIX_H

#include <stdint.h>

#define GOLDEN 0x9E3779B97F4A7C15ull

/* 64 random bits at a counter under a key. */
static inline __attribute__((always_inline)) uint64_t mix(uint64_t key, uint64_t counter) {
  uint64_t bits = key + counter * GOLDEN;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return bits ^ (bits >> 31);
}

#endif
