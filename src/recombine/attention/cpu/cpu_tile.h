/* The products of one tile of queries and keys, and their tables: see cpu.c. */
#ifndef RECOMBINE_CPU_TILE_H
#define RECOMBINE_CPU_TILE_H

#include "cpu_hyper.h"
#include "cpu_rows.h"

/* ---------------------------------------------------------------- tables of the products, for common sizes and for any */

typedef struct {
  int64_t H, F, HP, nq, nv; /* heads, features of a head, heads padded to whole vectors, queries, vectors of keys */
} tile;

typedef struct {
  void (*score)(const tile *, const vec *keys, const float *rows, const float *bias, int64_t bias_head, int64_t bias_query,
                vec *s);
  void (*contract)(const tile *, const vec *s, const vec *packed, float *rows);
  void (*contract_rows)(const tile *, int64_t num_keys, const vec *s, const row_source *keys, float *rows);
  void (*spread)(const tile *, const vec *s, const float *rows, vec *packed);
  void (*scale_rows)(const tile *, float *rows, const float *factor);
  void (*hyper_forward)(const tile *, ivec rms, vec floor, const vec *s, const vec *values, vec *z, float *rows);
  void (*hyper_rows)(const tile *, int64_t num_keys, vec floor, const vec *s, const row_source *values, vec *z, float *rows);
  void (*hyper_backward)(const tile *, ivec rms, vec floor, const vec *s, const vec *values, const float *grads, vec *t,
                         vec *gradient, vec *grad_values); /* grad_values may be NULL */
  int once; /* the hyper functions normalise over heads themselves */
} products;

#define DEFINE_PRODUCTS(name, H, F, HP, ONCE)                                                                              \
  static void score_##name(const tile *k, const vec *keys, const float *rows, const float *bias, int64_t bias_head,        \
                           int64_t bias_query, vec *s) {                                                                   \
    score_inline(H, F, HP, k->nq, k->nv, keys, rows, bias, bias_head, bias_query, s);                                      \
  }                                                                                                                        \
  static void contract_##name(const tile *k, const vec *s, const vec *packed, float *rows) {                               \
    FOR_RANGES(F, contract_range(C, H, F, HP, begin, end, k->nq, k->nv, s, packed, rows))                                  \
  }                                                                                                                        \
  static void contract_rows_##name(const tile *k, int64_t num_keys, const vec *s, const row_source *keys, float *rows) {     \
    contract_rows_inline(H, F, HP, k->nq, num_keys, s, keys, rows);                                                        \
  }                                                                                                                        \
  static void spread_##name(const tile *k, const vec *s, const float *rows, vec *packed) {                                 \
    FOR_RANGES(F, spread_range(C, H, F, HP, begin, end, k->nq, k->nv, s, rows, packed))                                    \
  }                                                                                                                        \
  static void scale_rows_##name(const tile *k, float *rows, const float *factor) {                                         \
    scale_rows_inline(H, F, HP, k->nq, rows, factor);                                                                      \
  }                                                                                                                        \
  static void hyper_forward_##name(const tile *k, ivec rms, vec floor, const vec *s, const vec *values, vec *z,            \
                                   float *rows) {                                                                          \
    FOR_CHUNKS(F, f, hyper_forward_inline(C, ONCE, H, F, HP, f, k->nq, k->nv, rms, floor, s, values, z, rows))             \
  }                                                                                                                        \
  static void hyper_rows_##name(const tile *k, int64_t num_keys, vec floor, const vec *s, const row_source *values, vec *z,  \
                                float *rows) {                                                                             \
    hyper_rows_inline(H, F, HP, k->nq, num_keys, floor, s, values, z, rows);                                               \
  }                                                                                                                        \
  static void hyper_backward_##name(const tile *k, ivec rms, vec floor, const vec *s, const vec *values,                   \
                                    const float *grads, vec *t, vec *gradient, vec *grad_values) {                         \
    /* one vector of keys after another, so that its codes and their gradient stay in the first-level cache */             \
    for (int64_t v = 0; v < k->nv; v++)                                                                                    \
      FOR_CHUNKS(F, f, {                                                                                                   \
        const int64_t at = (v * (F) + f) * (H), start = v * (TILE_QUERIES * (HP) + TILE_PADDING);                          \
        hyper_backward_inline(C, ONCE, ONCE || f == 0, H, HP, k->nq, rms, floor, s + start, values + at,                   \
                              grads + f * TILE_QUERIES * (H), t, gradient + start);                                        \
        if (grad_values) spread_hidden_inline(C, H, HP, k->nq, s + start, t, grad_values + at);                            \
      })                                                                                                                   \
  }                                                                                                                        \
  static const products name##_products = {                                                                                \
      score_##name,         contract_##name,   contract_rows_##name,  spread_##name, scale_rows_##name,                    \
      hyper_forward_##name, hyper_rows_##name, hyper_backward_##name, ONCE};
DEFINE_PRODUCTS(fuzzy_logic, 8, 2, 8, 1)
DEFINE_PRODUCTS(sraven, 16, 4, 16, 1)
DEFINE_PRODUCTS(language, 8, 64, 8, 0)
DEFINE_PRODUCTS(any, k->H, k->F, k->HP, 0)

static const products *choose_products(int64_t heads, int64_t features) {
  if (heads == 8 && features == 2) return &fuzzy_logic_products;
  if (heads == 16 && features == 4) return &sraven_products;
  if (heads == 8 && features == 64) return &language_products;
  return &any_products;
}

#endif
