/* The normalisations of a tile, forward and backward: see cpu.c. */
#ifndef RECOMBINE_CPU_NORMALISE_H
#define RECOMBINE_CPU_NORMALISE_H

#include "cpu_products.h"

/* Exponentiate a tile against its running row maximum, `row_shift`. `factor` corrects what was summed with the earlier
   maximum. The maximum is subtracted first, and exactly: scaled and rounded, it would differ from the scores it is
   subtracted from by more than 1 if they are large. */
INLINE void softmax_online(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, float *row_shift, float *row_sum,
                           float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += LANES) {
      vec part[LANES] = {0}, before = load(row_shift + q * ROW_STRIDE + h);
      UNROLL for (int i = 0; i < LANES; i++) {
        part[i] = s[AT(0, q) + h + i];
        for (int64_t v = 1; v < nv; v++) part[i] = larger(s[AT(v, q) + h + i], part[i]);
      }
      vec shift = larger(max_lanes(part), before);
      store(row_shift + q * ROW_STRIDE + h, shift);
      shift = choose(shift == splat(-INFINITY), splat(0), shift); /* no key so far: any finite shift will do */
      float shifts[LANES];
      store(shifts, shift);
      for (int i = 0; i < LANES && h + i < H; i++) {
        vec sum = splat(0);
        for (int64_t v = 0; v < nv; v++) {
          vec *a = s + AT(v, q) + h + i;
          *a = exp2_of((*a - shifts[i]) * LOG2_E);
          sum += *a;
        }
        part[i] = sum;
      }
      vec correct = exp2_of((before - shift) * LOG2_E);
      store(row_sum + q * ROW_STRIDE + h, load(row_sum + q * ROW_STRIDE + h) * correct + sum_lanes(part));
      store(factor + q * ROW_STRIDE + h, correct);
    }
}

/* Codes of a tile from scores and the final statistics of their rows. */
INLINE void softmax_final(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const float *row_shift,
                          const float *row_scale) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) {
        vec *a = s + AT(v, q) + h;
        *a = exp2_of((*a - row_shift[q * ROW_STRIDE + h]) * LOG2_E) * row_scale[q * ROW_STRIDE + h];
      }
}

INLINE void scale_codes(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const float *row_scale) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) s[AT(v, q) + h] *= row_scale[q * ROW_STRIDE + h];
}

/* Divide by the root mean square over heads, and keep its inverse. */
INLINE void rms_over_heads(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, vec *inverse) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      vec *a = s + AT(v, q), square = {0}, r;
      for (int64_t h = 0; h < H; h++) square += a[h] * a[h];
      square = square * (1.0f / H) + RMS_EPSILON;
      for (int i = 0; i < LANES; i++) r[i] = 1.0f / sqrtf(square[i]);
      for (int64_t h = 0; h < H; h++) a[h] *= r;
      inverse[v * TILE_QUERIES + q] = r;
    }
}

INLINE void rms_backward(int64_t H, int64_t HP, int64_t nq, int64_t nv, const vec *codes, const vec *inverse, vec *ds) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      const vec *a = codes + AT(v, q), r = inverse[v * TILE_QUERIES + q];
      vec *d = ds + AT(v, q), mean = {0};
      for (int64_t h = 0; h < H; h++) mean += a[h] * d[h];
      mean *= 1.0f / H;
      for (int64_t h = 0; h < H; h++) d[h] = r * (d[h] - a[h] * mean);
    }
}

/* Undo rms_over_heads. */
INLINE void restore_codes(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const vec *inverse) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) s[AT(v, q) + h] /= inverse[v * TILE_QUERIES + q];
}

/* dots[q][h] += sum over keys of codes * gradient */
INLINE void add_row_dots(int64_t HP, int64_t nq, int64_t nv, const vec *codes, const vec *gradient, float *dots) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < HP; h += LANES) {
      vec sum[LANES] = {0};
      for (int64_t v = 0; v < nv; v++)
        UNROLL for (int i = 0; i < LANES; i++) sum[i] += codes[AT(v, q) + h + i] * gradient[AT(v, q) + h + i];
      store(dots + q * ROW_STRIDE + h, load(dots + q * ROW_STRIDE + h) + sum_lanes(sum));
    }
}

INLINE void softmax_backward(int64_t H, int64_t HP, int64_t nq, int64_t nv, const vec *codes, const float *dots, vec *ds) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) {
        int64_t at = AT(v, q) + h;
        ds[at] = codes[at] * (ds[at] - dots[q * ROW_STRIDE + h]);
      }
}

#endif
