/* Products with lanes that are features, for heads of many features: nothing need be summed over lanes. See cpu.c.

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

/* ---------------------------------------------------------------- the hypernetwork, forward

Of LANES keys, Z_QUERIES queries and 2 vectors of features at a time: z[q][key][feature], then its sum over keys. The codes
are normalised before. */

#define Z_QUERIES 8
#define Z_VECTORS (Z_QUERIES * LANES * 2)

/* z = relu(sum_h s v) of one key, for Q queries */
INLINE void hidden_rows_few(const int Q, int64_t H, int64_t HP, vec floor, const float *s, const float *values, int64_t head,
                            vec *z) {
  vec x[8][2] = {0};
  for (int64_t h = 0; h < H; h++, values += head) {
    vec value[2] = {load(values), load(values + LANES)};
    UNROLL for (int j = 0; j < 2; j++) IN_REGISTER(value[j]);
    UNROLL for (int i = 0; i < Q; i++) {
      vec sh = splat(s[(i * HP + h) * LANES]);
      IN_REGISTER(sh);
      UNROLL for (int j = 0; j < 2; j++) x[i][j] += sh * value[j];
    }
  }
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < 2; j++) z[i * LANES * 2 + j] = larger(floor, x[i][j]);
}

/* row[h][f] += sum over keys of s[h] z[f], for N heads of one query */
INLINE void sum_hidden_few(const int N, int64_t F, int64_t num_keys, const float *s, const vec *z, float *row) {
  vec sum[8][2];
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int j = 0; j < 2; j++) sum[i][j] = load(row + i * F + j * LANES);
  for (int64_t key = 0; key < num_keys; key++) {
    vec zk[2] = {z[2 * key], z[2 * key + 1]};
    UNROLL for (int j = 0; j < 2; j++) IN_REGISTER(zk[j]);
    UNROLL for (int i = 0; i < N; i++) {
      vec sh = splat(s[i * LANES + key]);
      IN_REGISTER(sh);
      UNROLL for (int j = 0; j < 2; j++) sum[i][j] += sh * zk[j];
    }
  }
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int j = 0; j < 2; j++) store(row + i * F + j * LANES, sum[i][j]);
}

INLINE void hyper_rows_few(const int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t num_keys, vec floor, const vec *s,
                           const float *values, const row_source *source, vec *z, float *rows) {
  for (int64_t key = 0; key < num_keys; key++) {
    const float *value = values + key * source->token;
    int64_t q = 0;
#define HIDDEN_ROWS(Q) \
  hidden_rows_few(Q, H, HP, floor, (const float *)(s + q * HP) + key, value, source->head, z + (q * LANES + key) * 2)
    if (MANY_REGISTERS)
      for (; q + 8 <= nq; q += 8) HIDDEN_ROWS(8);
    for (; q + 4 <= nq; q += 4) HIDDEN_ROWS(4);
    for (; q < nq; q++) HIDDEN_ROWS(1);
  }
  for (int64_t q = 0; q < nq; q++) {
    int64_t h = 0;
#define SUM_HIDDEN(N) \
  sum_hidden_few(N, F, num_keys, (const float *)(s + q * HP + h), z + q * LANES * 2, rows + (q * H + h) * F)
    if (MANY_REGISTERS)
      for (; h + 8 <= H; h += 8) SUM_HIDDEN(8);
    for (; h + 4 <= H; h += 4) SUM_HIDDEN(4);
    for (; h < H; h++) SUM_HIDDEN(1);
  }
}

INLINE void hyper_rows_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t num_keys, vec floor, const vec *s,
                              const row_source *values, vec *z, float *rows) {
  for (int64_t key = 0; key < num_keys; key += LANES, s += TILE_STRIDE)
    for (int64_t f = 0; f < F; f += 2 * LANES)
      for (int64_t q = 0; q < nq; q += Z_QUERIES)
        hyper_rows_few(H, F, HP, smaller(Z_QUERIES, nq - q), smaller(LANES, num_keys - key), floor, s + q * HP,
                       values->data + key * values->token + f, values, z, rows + q * H * F + f);
}

#endif
