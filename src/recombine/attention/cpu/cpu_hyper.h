/* The hypernetwork value networks on one tile, forward and backward: see cpu.c. */
#ifndef RECOMBINE_CPU_HYPER_H
#define RECOMBINE_CPU_HYPER_H

#include "cpu_products.h"

/* ---------------------------------------------------------------- hypernetwork value networks

If a head's features are one chunk (ONCE), rms_head costs hardly anything on the way: `rms` is a mask, of zeros for r = 1.
Otherwise `s` must be normalised before, and rms_backward follows. Without relu, `floor` is minus infinity instead of 0: no
inner loop has a branch. `f` is the first of C features. What belongs to a chunk of features is contiguous, for all heads: of
values [f / C][head][C] vectors, of the gradient of the output (`g`) [f / C][query][head][C] floats. */

INLINE vec inverse_mean_square(vec sum_of_squares, int64_t H, ivec rms) {
  return choose(rms, 1.0f / (sum_of_squares * (1.0f / H) + RMS_EPSILON), splat(1));
}

/* sh: the codes of head h for Q queries and one vector of keys; their squares are summed once */
#define LOAD_CODES                                                                                                       \
  UNROLL for (int i = 0; i < Q; i++) {                                                                                   \
    sh[i] = s[i * HP + h];                                                                                               \
    IN_REGISTER(sh[i]);                                                                                                  \
    if (ONCE) squares[i] += sh[i] * sh[i];                                                                               \
  }

/* z = r^2 relu(sum_h s v) for Q queries and one vector of keys */
INLINE void hidden_few(const int C, const int Q, const int ONCE, int64_t H, int64_t HP, ivec rms, vec floor, const vec *s,
                       const vec *values, vec *z) {
  vec x[4][4] = {0}, squares[4] = {0};
  for (int64_t h = 0; h < H; h++) {
    vec sh[4];
    LOAD_CODES
    UNROLL for (int c = 0; c < C; c++) {
      vec value = values[h * C + c];
      IN_REGISTER(value);
      UNROLL for (int i = 0; i < Q; i++) x[i][c] += sh[i] * value;
    }
  }
  UNROLL for (int i = 0; i < Q; i++) {
    vec r2 = ONCE ? inverse_mean_square(squares[i], H, rms) : splat(1);
    UNROLL for (int c = 0; c < C; c++) z[i * CHUNK + c] = larger(floor, x[i][c]) * r2;
  }
}

INLINE void hyper_forward_inline(const int C, const int ONCE, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq,
                                 int64_t nv, ivec rms, vec floor, const vec *s, const vec *values, vec *z, float *rows) {
  for (int64_t v = 0; v < nv; v++) {
    int64_t q = 0;
#define HIDDEN(Q) \
  hidden_few(C, Q, ONCE, H, HP, rms, floor, s + AT(v, q), values + v * H * F + f * H, z + (v * TILE_QUERIES + q) * CHUNK)
    if (MANY_REGISTERS)
      for (; q + 4 <= nq; q += 4) HIDDEN(4);
    for (; q + 2 <= nq; q += 2) HIDDEN(2);
    if (q < nq) HIDDEN(1);
  }
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += LANES / C) {
      vec sum[LANES] = {0};
      for (int64_t v = 0; v < nv; v++) {
        vec zc[4];
        UNROLL for (int c = 0; c < C; c++) {
          zc[c] = z[(v * TILE_QUERIES + q) * CHUNK + c];
          IN_REGISTER(zc[c]);
        }
        UNROLL for (int i = 0; i < LANES / C; i++) {
          vec sh = s[AT(v, q) + h + i];
          IN_REGISTER(sh);
          UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * zc[c];
        }
      }
      add_sums(C, H, F, h, sum, rows + q * H * F + f);
    }
}

/* The gradient of the scores (into ds), and t of the header of cpu.c (for the gradient of values), for Q queries. */
INLINE void gradient_few(const int C, const int Q, const int ONCE, const int FIRST, int64_t H, int64_t HP, ivec rms, vec floor,
                         const vec *s, const vec *values, const float *g, vec *t, vec *ds) {
  vec x[2][4] = {0}, u[2][4] = {0}, squares[2] = {0}, shrink[2] = {0};
  for (int64_t h = 0; h < H; h++) {
    vec sh[2];
    LOAD_CODES
    UNROLL for (int c = 0; c < C; c++) {
      vec value = values[h * C + c];
      if (Q > 1) IN_REGISTER(value);
      UNROLL for (int i = 0; i < Q; i++) {
        x[i][c] += sh[i] * value;
        u[i][c] += sh[i] * g[(i * H + h) * C + c];
      }
    }
  }
  UNROLL for (int i = 0; i < Q; i++) {
    UNROLL for (int c = 0; c < C; c++) {
      keep_above(floor, &x[i][c], &u[i][c]);
      if (ONCE) shrink[i] += x[i][c] * u[i][c];
    }
    if (ONCE) {
      vec r2 = inverse_mean_square(squares[i], H, rms);
      UNROLL for (int c = 0; c < C; c++) x[i][c] *= r2, u[i][c] *= r2;
      shrink[i] = keep(shrink[i] * r2 * r2 * (-2.0f / H), rms);
    }
    UNROLL for (int c = 0; c < C; c++) t[i * CHUNK + c] = u[i][c];
  }
  for (int64_t h = 0; h < H; h++) {
    vec sum[2], other[2];
    UNROLL for (int i = 0; i < Q; i++) {
      sum[i] = FIRST ? splat(0) : ds[i * HP + h];
      other[i] = ONCE ? s[i * HP + h] * shrink[i] : splat(0);
    }
    UNROLL for (int c = 0; c < C; c++) {
      vec value = values[h * C + c];
      if (Q > 1) IN_REGISTER(value);
      UNROLL for (int i = 0; i < Q; i++) {
        sum[i] += x[i][c] * g[(i * H + h) * C + c];
        other[i] += u[i][c] * value;
      }
    }
    UNROLL for (int i = 0; i < Q; i++) ds[i * HP + h] = sum[i] + other[i];
  }
}

INLINE void hyper_backward_inline(const int C, const int ONCE, const int FIRST, int64_t H, int64_t HP, int64_t nq, ivec rms,
                                  vec floor, const vec *s, const vec *values, const float *grads, vec *t, vec *gradient) {
  int64_t q = 0;
#define GRADIENT(Q) \
  gradient_few(C, Q, ONCE, FIRST, H, HP, rms, floor, s + q * HP, values, grads + q * H * C, t + q * CHUNK, gradient + q * HP)
  if (MANY_REGISTERS)
    for (; q + 2 <= nq; q += 2) GRADIENT(2);
  for (; q < nq; q++) GRADIENT(1);
}

/* packed[h][f] += sum over queries of s[h] t[f], for N heads and one vector of keys: the gradient of values */
INLINE void spread_hidden_few(const int C, const int N, int64_t HP, int64_t nq, const vec *s, const vec *t, vec *packed) {
  vec sum[4][4];
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int c = 0; c < C; c++) sum[i][c] = packed[i * C + c];
  for (int64_t q = 0; q < nq; q++) {
    vec sh[4];
    UNROLL for (int i = 0; i < N; i++) {
      sh[i] = s[q * HP + i];
      IN_REGISTER(sh[i]);
    }
    UNROLL for (int c = 0; c < C; c++) {
      vec tc = t[q * CHUNK + c];
      IN_REGISTER(tc);
      UNROLL for (int i = 0; i < N; i++) sum[i][c] += sh[i] * tc;
    }
  }
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int c = 0; c < C; c++) packed[i * C + c] = sum[i][c];
}

INLINE void spread_hidden_inline(const int C, int64_t H, int64_t HP, int64_t nq, const vec *s, const vec *t, vec *packed) {
  int64_t h = 0;
  if (MANY_REGISTERS)
    for (; h + 4 <= H; h += 4) spread_hidden_few(C, 4, HP, nq, s + h, t, packed + h * C);
  for (; h + 2 <= H; h += 2) spread_hidden_few(C, 2, HP, nq, s + h, t, packed + h * C);
  if (h < H) spread_hidden_few(C, 1, HP, nq, s + h, t, packed + h * C);
}

/* g of rows[q][h][f]; the same if there is but one chunk */
static void pack_chunks(int64_t H, int64_t F, int64_t nq, const float *rows, float *g) {
  FOR_CHUNKS(F, f, {
    for (int64_t i = 0; i < nq * H; i++)
      UNROLL for (int c = 0; c < C; c++) g[f * TILE_QUERIES * H + i * C + c] = rows[i * F + f + c];
  })
}

/* rows[q][h][f] *= factor[q][h] */
INLINE void scale_rows_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, float *rows, const float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < F; f++) rows[(q * H + h) * F + f] *= factor[q * ROW_STRIDE + h];
}

#endif
