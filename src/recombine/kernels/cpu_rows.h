/* Sums over keys with lanes that are features, for heads of many features: nothing need be summed over lanes. See cpu.c.

Keys (or values) are read where they are, as rows of features; the codes of a tile are read one float at a time. */
#ifndef RECOMBINE_CPU_ROWS_H
#define RECOMBINE_CPU_ROWS_H

#include "cpu_products.h"

typedef struct {
  const float *data;   /* the first token; NULL if there are no such rows */
  int64_t token, head; /* strides */
} row_source;

/* rows[q][h][f] += sum over keys of s[h] keys[h][f], for Q queries and 2 vectors of features of one head */
INLINE void contract_rows_few(const int Q, int64_t H, int64_t F, int64_t HP, int64_t num_keys, const float *s,
                              const float *keys, int64_t token, float *rows) {
  vec sum[8][2];
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < 2; j++) sum[i][j] = load(rows + i * H * F + j * LANES);
  for (int64_t key = 0; key < num_keys; key += LANES, s += TILE_STRIDE * LANES) {
    const int64_t here = smaller(LANES, num_keys - key);
    for (int64_t lane = 0; lane < here; lane++, keys += token) {
      vec x[2] = {load(keys), load(keys + LANES)};
      UNROLL for (int j = 0; j < 2; j++) IN_REGISTER(x[j]);
      UNROLL for (int i = 0; i < Q; i++) {
        vec sh = splat(s[i * HP * LANES + lane]);
        IN_REGISTER(sh);
        UNROLL for (int j = 0; j < 2; j++) sum[i][j] += sh * x[j];
      }
    }
  }
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < 2; j++) store(rows + i * H * F + j * LANES, sum[i][j]);
}

INLINE void contract_rows_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t num_keys, const vec *s,
                                 const row_source *keys, float *rows) {
  for (int64_t h = 0; h < H; h++)
    for (int64_t f = 0; f < F; f += 2 * LANES) {
      int64_t q = 0;
#define CONTRACT_ROWS(Q)                                                                                       \
  contract_rows_few(Q, H, F, HP, num_keys, (const float *)(s + q * HP + h), keys->data + h * keys->head + f,  \
                    keys->token, rows + (q * H + h) * F + f)
      if (MANY_REGISTERS)
        for (; q + 8 <= nq; q += 8) CONTRACT_ROWS(8);
      for (; q + 4 <= nq; q += 4) CONTRACT_ROWS(4);
      for (; q < nq; q++) CONTRACT_ROWS(1);
    }
}

#endif
