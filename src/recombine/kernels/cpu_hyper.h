/* The hypernetwork value networks on one tile, forward and backward: see cpu.c. */
#ifndef RECOMBINE_CPU_HYPER_H
#define RECOMBINE_CPU_HYPER_H

#include "cpu_products.h"

/* ---------------------------------------------------------------- hypernetwork value networks

If a head's features are one chunk (ONCE), rms_head costs hardly anything on the way: `rms` is a mask, of zeros for r = 1.
Otherwise `s` must be normalised before, and rms_backward follows. Without relu, `floor` is minus infinity instead of 0: no
inner loop has a branch. `f` is the first of C features. */

INLINE vec inverse_mean_square(vec sum_of_squares, int64_t H, ivec rms) {
  return choose(rms, 1.0f / (sum_of_squares * (1.0f / H) + RMS_EPSILON), splat(1));
}

/* z = r^2 relu(sum_h s v) for Q queries and one vector of keys */
INLINE void hidden_few(const int C, const int Q, const int ONCE, int64_t H, int64_t F, int64_t HP, ivec rms, vec floor,
                       const vec *s, const vec *values, vec *z) {
  vec x[2][4] = {0}, squares[2] = {0};
  for (int64_t h = 0; h < H; h++) {
    vec sh[2];
    UNROLL for (int i = 0; i < Q; i++) {
      sh[i] = s[i * HP + h];
      IN_REGISTER(sh[i]);
      if (ONCE) squares[i] += sh[i] * sh[i];
    }
    UNROLL for (int c = 0; c < C; c++) {
      vec value = values[h * F + c];
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
  hidden_few(C, Q, ONCE, H, F, HP, rms, floor, s + AT(v, q), values + v * H * F + f, z + (v * TILE_QUERIES + q) * CHUNK)
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
      add_sums(C, H, F, h, f, sum, rows + q * H * F);
    }
}

/* The gradient of the scores (into ds), and t of the header of cpu.c (for the gradient of values). */
INLINE void hyper_backward_inline(const int C, const int ONCE, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq,
                                  int64_t nv, ivec rms, vec floor, const vec *tile, const vec *values, const float *grads,
                                  vec *t, vec *gradient) {
  const int first = ONCE || f == 0;
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      const vec *s = tile + AT(v, q), *value = values + v * H * F + f;
      const float *g = grads + q * H * F + f;
      vec *ds = gradient + AT(v, q), *to = t + (v * TILE_QUERIES + q) * CHUNK;
      vec x[4] = {0}, u[4] = {0}, squares = {0}, shrink = {0};
      for (int64_t h = 0; h < H; h++) {
        vec sh = s[h];
        IN_REGISTER(sh);
        UNROLL for (int c = 0; c < C; c++) {
          x[c] += sh * value[h * F + c];
          u[c] += sh * g[h * F + c];
        }
        if (ONCE) squares += sh * sh;
      }
      UNROLL for (int c = 0; c < C; c++) {
        ivec m = ~(x[c] <= floor); /* NaN passes, so that it is seen */
        x[c] = keep(x[c], m);
        u[c] = keep(u[c], m);
        if (ONCE) shrink += x[c] * u[c];
      }
      if (ONCE) {
        vec r2 = inverse_mean_square(squares, H, rms);
        UNROLL for (int c = 0; c < C; c++) x[c] *= r2, u[c] *= r2;
        shrink = keep(shrink * r2 * r2 * (-2.0f / H), rms);
      }
      UNROLL for (int c = 0; c < C; c++) to[c] = u[c];
      for (int64_t h = 0; h < H; h++) {
        vec sum = first ? splat(0) : ds[h], other = ONCE ? s[h] * shrink : splat(0);
        UNROLL for (int c = 0; c < C; c++) {
          sum += x[c] * g[h * F + c];
          other += u[c] * value[h * F + c];
        }
        ds[h] = sum + other;
      }
    }
}

/* packed[v][h][f] += sum over queries of s[h] t[f]: the gradient of values */
INLINE void spread_hidden_inline(const int C, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq, int64_t nv,
                                 const vec *s, const vec *t, vec *packed) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t h = 0; h < H; h += 2) {
      const int pair = h + 1 < H;
      vec *to = packed + (v * H + h) * F + f, *also = pair ? to + F : to;
      vec sum[2][4];
      UNROLL for (int c = 0; c < C; c++) {
        sum[0][c] = to[c];
        sum[1][c] = also[c];
      }
      for (int64_t q = 0; q < nq; q++) {
        vec s0 = s[AT(v, q) + h], s1 = s[AT(v, q) + h + 1];
        IN_REGISTER(s0);
        IN_REGISTER(s1);
        UNROLL for (int c = 0; c < C; c++) {
          vec tc = t[(v * TILE_QUERIES + q) * CHUNK + c];
          IN_REGISTER(tc);
          sum[0][c] += s0 * tc;
          sum[1][c] += s1 * tc;
        }
      }
      UNROLL for (int c = 0; c < C; c++) {
        if (pair) also[c] = sum[1][c];
        to[c] = sum[0][c];
      }
    }
}

/* rows[q][h][f] *= factor[q][h] */
INLINE void scale_rows_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, float *rows, const float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < F; f++) rows[(q * H + h) * F + f] *= factor[q * HP + h];
}

#endif
