/* Random numbers of `recombine.random.Stream`: SplitMix64 at counters 0 .. count - 1 under each of several keys, shifted,
scaled or ordered in the same pass, so that the 64 bits are never stored.

Integers all the way but for the last, exact, multiplication of `uniform`: the numbers are the same on every machine.
*/
#include <stdint.h>
#include <string.h>

#include "splitmix.h"

#define BLOCK 4096 /* numbers per thread at a time */

typedef struct {
  const uint64_t *keys;
  void *out; /* (keys, count) */
  int64_t num_keys, count, threads;
} problem;

#define FILL(type, number)                                                                                               \
  const int64_t blocks = (p->count + BLOCK - 1) / BLOCK;                                                                 \
  _Pragma("omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)")                               \
  for (int64_t part = 0; part < p->num_keys * blocks; part++) {                                                          \
    const uint64_t key = p->keys[part / blocks];                                                                         \
    const int64_t first = part % blocks * BLOCK, end = first + BLOCK < p->count ? first + BLOCK : p->count;              \
    type *out = (type *)p->out + part / blocks * p->count;                                                               \
    for (int64_t i = first; i < end; i++) {                                                                              \
      const uint64_t bits = mix(key, i);                                                                                 \
      out[i] = number;                                                                                                   \
    }                                                                                                                    \
  }                                                                                                                      \
  return 0;

int recombine_draw_bits(const problem *p) { FILL(int64_t, (int64_t)bits) }

/* Multiples of 2^-24 in [0, 1). */
int recombine_draw_uniform(const problem *p) { FILL(float, (float)(int32_t)(bits >> 40) * 0x1p-24f) }

/* The same for rows of `row` numbers, of which the first `lengths` times `width` are drawn; 0 behind them. */
int recombine_draw_sequences(const problem *p, const int64_t *lengths, int64_t row, int64_t width) {
  const int64_t rows = p->count / row;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
  for (int64_t r = 0; r < p->num_keys * rows; r++) {
    const uint64_t key = p->keys[r / rows] + (uint64_t)(r % rows * row) * GOLDEN;
    const int64_t drawn = lengths[r] * width;
    float *out = (float *)p->out + r * row;
    for (int64_t i = 0; i < drawn; i++) out[i] = (float)(int32_t)(mix(key, i) >> 40) * 0x1p-24f;
    memset(out + drawn, 0, (row - drawn) * sizeof(float));
  }
  return 0;
}

/* 0 .. high - 1, for high < 2^31. */
int recombine_draw_integers(const problem *p, int64_t high) { FILL(int64_t, (int64_t)((bits >> 32) * (uint64_t)high >> 32)) }

/* For each row of `size` numbers, where its `kept` smallest are, in order; numbers are compared as signed ones. */
int recombine_draw_orders(const problem *p, int64_t size, int64_t kept) {
  const int64_t rows = p->count / size;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
  for (int64_t row = 0; row < p->num_keys * rows; row++) {
    const uint64_t key = p->keys[row / rows];
    int64_t *out = (int64_t *)p->out + row * kept, smallest[16], filled = 0;
    for (int64_t i = 0; i < size; i++) {
      const int64_t bits = (int64_t)mix(key, row % rows * size + i);
      if (filled == kept && bits >= smallest[kept - 1]) continue;
      int64_t at = filled < kept ? filled++ : kept - 1;
      for (; at > 0 && smallest[at - 1] > bits; at--) smallest[at] = smallest[at - 1], out[at] = out[at - 1];
      smallest[at] = bits, out[at] = i;
    }
  }
  return 0;
}
