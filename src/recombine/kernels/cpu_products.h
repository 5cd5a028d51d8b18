/* What a tile is, and the products of scores and of the linear value network: see cpu.c. */
#ifndef RECOMBINE_CPU_PRODUCTS_H
#define RECOMBINE_CPU_PRODUCTS_H

#include "cpu_vector.h"

#ifndef TILE_QUERIES
#define TILE_QUERIES 8 /* queries of a tile */
#endif
#ifndef TILE_PADDING
#define TILE_PADDING 4
#endif
#define BLOCK_VECTORS 8 /* most vectors of keys in a tile */
#define CHUNK 4         /* features handled in registers at once */
#define RMS_EPSILON 1e-6f

/* ---------------------------------------------------------------- the products of a tile

A tile holds, for `nv` vectors of keys and `nq` queries, one vec per head: s[AT(v, q) + h].
Rows of queries are [q][head][feature] floats; packed keys are [v][head][feature] vecs. What is written in capitals is
constant once inlined (H and F in the tables of common sizes at the end), so that the small loops unroll and the sums stay in
registers. */

#define TILE_STRIDE (TILE_QUERIES * HP + TILE_PADDING) /* vecs from one vector of keys to the next */
#define AT(v, q) ((v) * TILE_STRIDE + (q) * HP)
/* Features are handled in chunks of C = 4, then 2, then 1: CALL for each chunk from f on, or for each range of chunks. */
#define FOR_RANGES(F, CALL)                                                              \
  {                                                                                      \
    { enum { C = 4 }; const int64_t begin = 0, end = (F) / 4 * 4; CALL; }                \
    { enum { C = 2 }; const int64_t begin = (F) / 4 * 4, end = (F) / 2 * 2; CALL; }      \
    { enum { C = 1 }; const int64_t begin = (F) / 2 * 2, end = (F); CALL; }              \
  }
#define FOR_CHUNKS(F, f, CALL) FOR_RANGES(F, for (int64_t f = begin; f < end; f += C) CALL)

/* s = rows . keys (+ bias), for Q queries and N vectors of one head */
INLINE void score_few(const int Q, const int N, int64_t H, int64_t F, int64_t HP, const vec *keys, const float *rows,
                      const float *bias, int64_t bias_query, vec *s) {
  vec sum[4][2];
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
INLINE void add_sums(const int C, int64_t H, int64_t F, int64_t h, int64_t f, const vec *sums, float *row) {
  vec total = sum_lanes(sums);
  if (C == F && h + LANES / C <= H) store(row + h * F, load(row + h * F) + total);
  else
    for (int i = 0; i < LANES; i++)
      if (h + i / C < H) row[(h + i / C) * F + f + i % C] += total[i];
}

/* rows[q][h][f] += sum over keys of s[h] packed[h][f]: the linear value network, and the gradient of queries */
INLINE void contract_range(const int C, int64_t H, int64_t F, int64_t HP, int64_t begin, int64_t end, int64_t nq, int64_t nv,
                           const vec *s, const vec *packed, float *rows) {
  for (int64_t h = 0; h < H; h += LANES / C)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t f = begin; f < end; f += C) {
        vec sum[LANES] = {0};
        for (int64_t v = 0; v < nv; v++)
          UNROLL for (int i = 0; i < LANES / C; i++) {
            vec sh = s[AT(v, q) + h + i];
            IN_REGISTER(sh);
            UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * packed[(v * H + h + i) * F + f + c];
          }
        add_sums(C, H, F, h, f, sum, rows + q * H * F);
      }
}

/* packed[v][h][f] += sum over queries of s[h] rows[q][h][f]: gradients of keys, and of values of the linear network */
INLINE void spread_few(const int C, const int N, int64_t H, int64_t F, int64_t HP, int64_t nq, const vec *s, const float *rows,
                       vec *packed) {
  vec sum[2][4];
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) sum[j][c] = packed[j * H * F + c];
  for (int64_t q = 0; q < nq; q++) {
    vec sh[2];
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
    for (; v + 2 <= nv; v += 2)
      for (int64_t f = begin; f < end; f += C) SPREAD(2);
    if (v < nv)
      for (int64_t f = begin; f < end; f += C) SPREAD(1);
  }
}

#endif
