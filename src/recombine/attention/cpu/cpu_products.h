/* What a tile is, and the products of scores and of the linear value network: see cpu.c. */
#ifndef RECOMBINE_CPU_PRODUCTS_H
#define RECOMBINE_CPU_PRODUCTS_H

#include "cpu_vector.h"

#ifndef TILE_QUERIES
#define TILE_QUERIES 8 /* queries of a tile */
#endif
#define TILE_GROUP 8 /* most tiles in a group */
#ifndef TILE_PADDING
#define TILE_PADDING 4
#endif
#define BLOCK_VECTORS 8 /* most vectors of keys in a tile */
#define CHUNK 4         /* features handled in registers at once */
#ifndef CACHE_BYTES
#define CACHE_BYTES (512 << 10) /* of a second-level cache, for a block of keys */
#endif
#define RMS_EPSILON 1e-6f

/* ---------------------------------------------------------------- the products of a tile

A tile holds, for `nv` vectors of keys and `nq` queries, one vec per head: s[AT(v, q) + h].
Rows of queries are [q][head][feature] floats; packed keys are [v][head][feature] vecs. What is written in capitals is
constant once inlined (H and F in the tables of common sizes at the end), so that the small loops unroll and the sums stay in
registers. */

#define TILE_STRIDE (TILE_QUERIES * HP + TILE_PADDING) /* vecs from one vector of keys to the next */
#define ROW_STRIDE ((HP + LANES - 1) / LANES * LANES)  /* floats from one query to the next, of numbers per query and head */
#define AT(v, q) ((v) * TILE_STRIDE + (q) * HP)
/* Features are handled in chunks of C = 4, then 2, then 1: what follows is done for each range of chunks, or for each chunk from f on. */
#define FOR_RANGES(F, ...)                                                               \
  {                                                                                      \
    { enum { C = 4 }; const int64_t begin = 0, end = (F) / 4 * 4; __VA_ARGS__; }                \
    { enum { C = 2 }; const int64_t begin = (F) / 4 * 4, end = (F) / 2 * 2; __VA_ARGS__; }      \
    { enum { C = 1 }; const int64_t begin = (F) / 2 * 2, end = (F); __VA_ARGS__; }              \
  }
#define ONE_CHUNK(F) ((F) == 1 || (F) == 2 || (F) == 4)
#define FOR_CHUNKS(F, f, ...) FOR_RANGES(F, for (int64_t f = begin; f < end; f += C) __VA_ARGS__)

/* s = rows . keys (+ bias), for Q queries and N vectors of one head */
INLINE void score_few(const int Q, const int N, int64_t H, int64_t F, int64_t HP, const vec *keys, const float *rows,
                      const float *bias, int64_t bias_query, vec *s) {
  vec sum[8][2];
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) sum[i][j] = bias ? load(bias + i * bias_query + j * LANES) : splat(0);
  for (int64_t f = 0; f < F; f++) {
    vec key[2];
    UNROLL for (int j = 0; j < N; j++) {
      key[j] = keys[j * H * F + f];
      IN_REGISTER(key[j]);
    }
    UNROLL for (int i = 0; i < Q; i++)
      UNROLL for (int j = 0; j < N; j++) sum[i][j] += key[j] * rows[i * H * F + f];
  }
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) s[AT(j, i)] = sum[i][j];
}

INLINE void score_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t nv, const vec *keys, const float *rows,
                         const float *bias, int64_t bias_head, int64_t bias_query, vec *s) {
  for (int64_t h = 0; h < H; h++) {
    int64_t q = 0;
#define SCORE(Q, N)                                                                           \
  score_few(Q, N, H, F, HP, keys + (v * H + h) * F, rows + (q * H + h) * F,                   \
            bias ? bias + h * bias_head + q * bias_query + v * LANES : 0, bias_query, s + AT(v, q) + h)
    if (MANY_REGISTERS)
      for (; q + 8 <= nq; q += 8) {
        int64_t v = 0;
        for (; v + 2 <= nv; v += 2) SCORE(8, 2);
        if (v < nv) SCORE(8, 1);
      }
    for (; q + 4 <= nq; q += 4) {
      int64_t v = 0;
      for (; v + 2 <= nv; v += 2) SCORE(4, 2);
      if (v < nv) SCORE(4, 1);
    }
    for (; q < nq; q++)
      for (int64_t v = 0; v < nv; v++) SCORE(1, 1);
  }
}

/* Add the sums of LANES / C heads and C features to a row; heads past the last one are dropped. */
INLINE void add_sums(const int C, int64_t H, int64_t F, int64_t h, const vec *sums, float *row) {
  vec total = sum_lanes(sums);
  float totals[LANES];
  if (C == F && h + LANES / C <= H) store(row + h * F, load(row + h * F) + total);
  else {
    store(totals, total);
    for (int i = 0; i < LANES / C && h + i < H; i++)
      UNROLL for (int c = 0; c < C; c++) row[(h + i) * F + c] += totals[i * C + c];
  }
}

/* rows[q][h][f] += sum over keys of s[h] packed[h][f]: the linear value network, and the gradient of queries. If a head is one
   chunk, for LANES / C heads, whose sums are neighbours in memory; */
INLINE void contract_heads(const int C, int64_t H, int64_t HP, int64_t h, int64_t nv, const vec *s, const vec *packed,
                           float *row) {
  vec sum[LANES] = {0};
  for (int64_t v = 0; v < nv; v++)
    UNROLL for (int i = 0; i < LANES / C; i++) {
      vec sh = s[v * TILE_STRIDE + h + i];
      IN_REGISTER(sh);
      UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * packed[(v * H + h + i) * C + c];
    }
  add_sums(C, H, C, h, sum, row);
}

/* otherwise for LANES / C queries and C features of one head; queries past the last one are dropped. */
INLINE void contract_few(const int C, int64_t H, int64_t F, int64_t HP, int64_t q, int64_t nq, int64_t nv, const vec *s,
                         const vec *packed, float *rows) {
  vec sum[LANES] = {0};
  int64_t at[LANES];
  UNROLL for (int i = 0; i < LANES / C; i++) at[i] = smaller(q + i, nq - 1) * HP;
  for (int64_t v = 0; v < nv; v++) {
    vec p[4];
    UNROLL for (int c = 0; c < C; c++) {
      p[c] = packed[v * H * F + c];
      IN_REGISTER(p[c]);
    }
    UNROLL for (int i = 0; i < LANES / C; i++) {
      vec sh = s[v * TILE_STRIDE + at[i]];
      IN_REGISTER(sh);
      UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * p[c];
    }
  }
  float totals[LANES];
  store(totals, sum_lanes(sum));
  for (int i = 0; i < LANES / C && q + i < nq; i++)
    UNROLL for (int c = 0; c < C; c++) rows[(q + i) * H * F + c] += totals[i * C + c];
}

INLINE void contract_range(const int C, int64_t H, int64_t F, int64_t HP, int64_t begin, int64_t end, int64_t nq, int64_t nv,
                           const vec *s, const vec *packed, float *rows) {
  if (C == F) {
    for (int64_t h = 0; h < H; h += LANES / C)
      for (int64_t q = 0; q < nq; q++) contract_heads(C, H, HP, h, nv, s + q * HP, packed, rows + q * H * F);
    return;
  }
  for (int64_t h = 0; h < H; h++)
    for (int64_t f = begin; f < end; f += C)
      for (int64_t q = 0; q < nq; q += LANES / C)
        contract_few(C, H, F, HP, q, nq, nv, s + h, packed + h * F + f, rows + h * F + f);
}

/* packed[v][h][f] += sum over queries of s[h] rows[q][h][f]: gradients of keys, and of values of the linear network */
INLINE void spread_few(const int C, const int N, int64_t H, int64_t F, int64_t HP, int64_t nq, const vec *s, const float *rows,
                       vec *packed) {
  vec sum[4][4];
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) sum[j][c] = packed[j * H * F + c];
  for (int64_t q = 0; q < nq; q++) {
    vec sh[4];
    UNROLL for (int j = 0; j < N; j++) {
      sh[j] = s[AT(j, q)];
      IN_REGISTER(sh[j]);
    }
    UNROLL for (int c = 0; c < C; c++)
      UNROLL for (int j = 0; j < N; j++) sum[j][c] += sh[j] * rows[q * H * F + c];
  }
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) packed[j * H * F + c] = sum[j][c];
}

INLINE void spread_range(const int C, int64_t H, int64_t F, int64_t HP, int64_t begin, int64_t end, int64_t nq, int64_t nv,
                         const vec *s, const float *rows, vec *packed) {
  for (int64_t h = 0; h < H; h++) {
    int64_t v = 0;
#define SPREAD(N) spread_few(C, N, H, F, HP, nq, s + AT(v, 0) + h, rows + h * F + f, packed + (v * H + h) * F + f)
    if (MANY_REGISTERS)
      for (; v + 4 <= nv; v += 4)
        for (int64_t f = begin; f < end; f += C) SPREAD(4);
    for (; v + 2 <= nv; v += 2)
      for (int64_t f = begin; f < end; f += C) SPREAD(2);
    if (v < nv)
      for (int64_t f = begin; f < end; f += C) SPREAD(1);
  }
}

#endif
