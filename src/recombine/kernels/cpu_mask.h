/* Scores of a tile, masked: see cpu.c. */
#ifndef RECOMBINE_CPU_MASK_H
#define RECOMBINE_CPU_MASK_H

#include "cpu_plan.h"

/* How many vectors of the block from v0 some query of the tile may see: queries are aligned at the end of the keys. */
static int64_t visible_vectors(const plan *l, int64_t q0, int64_t nq, int64_t v0) {
  int64_t last = l->vectors;
  if (l->p.causal) {
    int64_t seen = l->p.keys - l->p.queries + q0 + nq;
    last = seen <= 0 ? 0 : smaller(last, at_most_one_less(seen, LANES));
  }
  last = smaller(last, v0 + l->block) - v0;
  return last < 0 ? 0 : last;
}

/* Mask a tile, and return the first vector of keys that has anything masked. Keys past the end are zeros and need no mask but
   in a softmax. */
static int64_t build_mask(const plan *l, work *w, int64_t q0, int64_t nq, int64_t v0, int64_t nv) {
  const problem *p = &l->p;
  const int64_t position = p->keys - p->queries + q0; /* of the first query */
  int64_t first = nv;
  if (p->softmax && (v0 + nv) * LANES > p->keys) first = nv - 1;
  if (p->causal && (v0 + nv) * LANES > position + 1) first = smaller(first, position < v0 * LANES ? 0 : (position + 1) / LANES - v0);
  if (p->key_mask) first = 0;
  ivec lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  for (int64_t v = first; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      ivec mask = w->e.visible[v0 + v];
      if (p->causal) mask &= lanes + (int32_t)((v0 + v) * LANES) <= (int32_t)(position + q);
      w->mask[v * TILE_QUERIES + q] = mask;
    }
  return first;
}

static void apply_mask(const tile *k, int64_t first, const ivec *mask, vec masked, vec *s) {
  const int64_t HP = k->HP;
  for (int64_t v = first; v < k->nv; v++)
    for (int64_t q = 0; q < k->nq; q++) {
      const ivec m = mask[v * TILE_QUERIES + q];
      vec *x = s + AT(v, q);
      for (int64_t h = 0; h < k->H; h++) x[h] = choose(m, x[h], masked);
    }
}

/* Scores of a tile, masked; returns the first vector of keys that needed a mask. */
static int64_t score_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const float *bias = l->bias ? l->bias + b * l->bias_batch + q0 * l->bias_query + v0 * LANES : NULL;
  const tile keys = {k->H, l->p.dim, k->HP, k->nq, k->nv};
  l->of_keys->score(&keys, w->e.keys + v0 * k->H * keys.F, w->q_rows, bias, l->bias_head, l->bias_query, w->codes);
  const int64_t first = build_mask(l, w, q0, k->nq, v0, k->nv);
  apply_mask(k, first, w->mask, splat(l->p.softmax ? -INFINITY : 0), w->codes);
  return first;
}

#endif
