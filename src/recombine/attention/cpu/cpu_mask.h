/* Which pairs of a tile may attend, which codes are dropped, and the scores of a tile: see cpu.c. */
#ifndef RECOMBINE_CPU_MASK_H
#define RECOMBINE_CPU_MASK_H

#include "cpu_plan.h"
#include "splitmix.h"

typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

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

/* The tokens of a block from v0 on as rows of features, where they are; none if they cannot be used so. */
static row_source find_rows(const plan *l, const tensor *t, int64_t features, int64_t b, int64_t v0) {
  if (l->p.bf16 || features % (2 * LANES)) return (row_source){0};
  return (row_source){(const float *)t->data + b * t->batch + v0 * LANES * t->token, t->token, t->head};
}

static int64_t keys_of(const plan *l, const tile *k, int64_t v0) { return smaller(k->nv * LANES, l->p.keys - v0 * LANES); }

/* rows += sum over the keys of a block from v0 on of codes times keys, or times values */
static void contract_block(const plan *l, const products *of, const tile *k, const tensor *t, int64_t b, int64_t v0,
                           const vec *s, const vec *packed, float *rows) {
  const row_source source = find_rows(l, t, k->F, b, v0);
  if (source.data) of->contract_rows(k, keys_of(l, k, v0), s, &source, rows);
  else of->contract(k, s, packed + v0 * k->H * k->F, rows);
}

/* ---------------------------------------------------------------- dropout: the bits of definition.py */

/* Which of LANES keys are kept: 16 bits each, four keys to a word. */
static ivec kept_keys(const problem *p, uint64_t row, int64_t key) {
  const uint64_t words = at_most_one_less(p->keys, 4), first = row * words + key / 4;
  uint64_t word[LANES / 4];
  halves bits;
  for (int i = 0; i < LANES / 4; i++) word[i] = mix(p->dropout_key, first + i);
  memcpy(&bits, word, sizeof bits);
  return __builtin_convertvector(bits, ivec) >= (int32_t)p->dropout_threshold;
}

/* Codes that are dropped after a normalisation that sees them. */
static void build_kept(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const problem *p = &l->p;
  const int64_t HP = k->HP;
  for (int64_t v = 0; v < k->nv; v++)
    for (int64_t q = 0; q < k->nq; q++) {
      if (p->dropout == DROP_PAIRS) w->kept[v * TILE_QUERIES + q] = kept_keys(p, q0 + q, (v0 + v) * LANES);
      else
        for (int64_t h = 0; h < k->H; h++)
          w->kept[AT(v, q) + h] = kept_keys(p, ((uint64_t)b * k->H + h) * p->queries + q0 + q, (v0 + v) * LANES);
    }
}

/* ---------------------------------------------------------------- masks */

/* LANES entries of the mask, from a key on. */
static ivec read_mask(const plan *l, int64_t b, int64_t h, int64_t q, int64_t key) {
  const pair_mask *m = &l->p.mask;
  const uint8_t *from = m->data + b * m->batch + h * m->head + q * m->query + key * m->key;
  if (m->key == 1 && key + LANES <= l->p.keys) return __builtin_convertvector(*(const bytes *)from, ivec) != 0;
  ivec mask = {0};
  for (int64_t i = 0; i < LANES && key + i < l->p.keys; i++) mask[i] = from[i * m->key] ? -1 : 0;
  return mask;
}

/* Mask a tile, and return the first vector of keys that has anything masked. Keys past the end are zeros and need no mask but
   in a softmax. Pairs that are dropped are masked, unless a softmax sees them. */
static int64_t build_mask(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const problem *p = &l->p;
  const int64_t HP = k->HP, end = (v0 + k->nv) * LANES, position = p->keys - p->queries + q0; /* of the first query */
  int64_t first = k->nv;
  if (p->softmax && end > p->keys) first = k->nv - 1;
  if (p->causal && end > position + 1) first = smaller(first, position < v0 * LANES ? 0 : (position + 1) / LANES - v0);
  if (p->mask.data || l->drop_early) first = 0;
  ivec lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  for (int64_t v = first; v < k->nv; v++)
    for (int64_t q = 0; q < k->nq; q++) {
      const int64_t key = (v0 + v) * LANES;
      ivec mask = lanes + (int32_t)key < (int32_t)p->keys;
      if (p->causal) mask &= lanes + (int32_t)key <= (int32_t)(position + q);
      if (l->drop_early) mask &= kept_keys(p, q0 + q, key);
      if (l->mask_per_head)
        for (int64_t h = 0; h < k->H; h++) w->mask[AT(v, q) + h] = mask & read_mask(l, b, h, q0 + q, key);
      else w->mask[v * TILE_QUERIES + q] = p->mask.data ? mask & read_mask(l, b, 0, q0 + q, key) : mask;
    }
  return first;
}

/* to = from where the mask is set, else `masked`; a mask per head is laid out as the tile is. */
static void choose_codes(const tile *k, int64_t first, const ivec *mask, int per_head, vec masked, const vec *from, vec *to) {
  const int64_t HP = k->HP;
  for (int64_t v = first; v < k->nv; v++)
    for (int64_t q = 0; q < k->nq; q++) {
      const vec *x = from + AT(v, q);
      vec *y = to + AT(v, q);
      if (per_head) {
        const ivec *m = mask + AT(v, q);
        for (int64_t h = 0; h < k->H; h++) y[h] = choose(m[h], x[h], masked);
      } else {
        const ivec m = mask[v * TILE_QUERIES + q];
        for (int64_t h = 0; h < k->H; h++) y[h] = choose(m, x[h], masked);
      }
    }
}

static void apply_mask(const plan *l, const work *w, const tile *k, int64_t first, vec masked, vec *s) {
  choose_codes(k, first, w->mask, l->mask_per_head, masked, s, s);
}

static void drop_codes(const plan *l, const work *w, const tile *k, const vec *from, vec *to) {
  choose_codes(k, 0, w->kept, l->p.dropout == DROP_ELEMENTS, splat(0), from, to);
}

/* Scores of a tile, masked; returns the first vector of keys that needed a mask. */
static int64_t score_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const float *bias = l->bias ? l->bias + b * l->bias_batch + q0 * l->bias_query + v0 * LANES : NULL;
  const tile keys = {k->H, l->p.dim, k->HP, k->nq, k->nv};
  l->of_keys->score(&keys, w->e.keys + v0 * k->H * keys.F, w->q_rows, bias, l->bias_head, l->bias_query, w->codes);
  const int64_t first = build_mask(l, w, k, b, q0, v0);
  apply_mask(l, w, k, first, splat(l->p.softmax ? -INFINITY : 0), w->codes);
  if (l->drop_late) build_kept(l, w, k, b, q0, v0);
  return first;
}

#endif
