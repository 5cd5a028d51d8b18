/* The forward pass: see cpu.c. */
#ifndef RECOMBINE_CPU_FORWARD_H
#define RECOMBINE_CPU_FORWARD_H

#include "cpu_mask.h"

static void start_softmax(const plan *l, work *w, int64_t nq) {
  for (int64_t i = 0; i < nq * l->row_stride; i++) {
    w->row_shift[i] = -INFINITY;
    w->row_scale[i] = 0;
  }
}

/* From sums to inverse sums, and save the statistics; rows without any key keep codes of 0. */
static void finish_softmax(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const int64_t H = l->p.heads, HP = l->heads_padded;
  for (int64_t i = 0; i < nq * ROW_STRIDE; i++) {
    w->row_shift[i] = w->row_shift[i] == -INFINITY ? 0 : w->row_shift[i];
    w->row_scale[i] = w->row_scale[i] == 0 ? 0 : 1 / w->row_scale[i];
  }
  for (int64_t q = 0; q < nq; q++) {
    memcpy(l->p.row_shift + (b * l->p.queries + q0 + q) * H, w->row_shift + q * ROW_STRIDE, H * sizeof(float));
    memcpy(l->p.row_scale + (b * l->p.queries + q0 + q) * H, w->row_scale + q * ROW_STRIDE, H * sizeof(float));
  }
}

/* ---------------------------------------------------------------- one tile */

static void forward_hyper_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const int64_t softmax = l->p.softmax;
  if (softmax && l->blocks == 1) /* softmax_statistics has left the codes there */
    scale_codes(k->H, k->HP, k->nq, k->nv, w->codes, w->row_scale);
  else {
    score_tile(l, w, k, b, q0, v0);
    if (softmax) softmax_final(k->H, k->HP, k->nq, k->nv, w->codes, w->row_shift, w->row_scale);
  }
  if (l->rms_apart) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  if (l->drop_late) drop_codes(l, w, k, w->codes, w->codes);
  const row_source values = find_rows(l, &l->p.v, k->F, b, v0);
  if (values.data && (l->rms_apart || !l->p.rms))
    l->of_values->hyper_rows(k, keys_of(l, k, v0), l->floor, w->codes, &values, w->hidden, w->out_rows);
  else l->of_values->hyper_forward(k, l->rms, l->floor, w->codes, w->e.values + v0 * k->H * k->F, w->hidden, w->out_rows);
}

static void forward_linear_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  score_tile(l, w, k, b, q0, v0);
  if (l->p.softmax) {
    softmax_online(k->H, k->HP, k->nq, k->nv, w->codes, w->row_shift, w->row_scale, w->factor);
    if (v0) l->of_values->scale_rows(k, w->out_rows, w->factor);
  }
  if (l->rms_apart) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  if (l->drop_late) drop_codes(l, w, k, w->codes, w->codes);
  contract_block(l, l->of_values, k, &l->p.v, b, v0, w->codes, w->e.values, w->out_rows);
}

static void open_forward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  read_rows(&p->q, w->q_rows, b, q0, nq, p->heads, p->dim, p->bf16, l->scale);
  memset(w->out_rows, 0, nq * p->heads * p->value_dim * sizeof(float));
  if (p->softmax) start_softmax(l, w, nq);
}

static void close_forward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim;
  const tile k = {H, E, l->heads_padded, nq, 0};
  if (p->softmax && !p->hyper) {
    finish_softmax(l, w, b, q0, nq);
    l->of_values->scale_rows(&k, w->out_rows, w->row_scale);
  }
  scale_all(w->out_rows, nq * H * E, l->factor);
  for (int64_t q = 0; q < nq; q++) write_row(&p->out, b, q0 + q, w->out_rows + q * H * E, H, E, p->bf16);
}

/* ---------------------------------------------------------------- a group of tiles: all see a block before the next one */

#define FOR_TILES(l, w, first, i, q0, nq)                                                                   \
  for (int64_t i = 0, end = smaller((l)->group, TILES(l) - (first)); i < end; i++)                          \
    for (int64_t once = 1, q0 = ((first) + i) * TILE_QUERIES, nq = smaller(TILE_QUERIES, (l)->p.queries - q0); \
         once && (choose_rows(w, i), 1); once = 0)

/* A hypernetwork needs the final codes: the sums of all rows before anything else. */
static void softmax_statistics(const plan *l, work *w, int64_t b, int64_t first) {
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block)
    FOR_TILES(l, w, first, i, q0, nq) {
      const tile k = {l->p.heads, l->p.value_dim, l->heads_padded, nq, visible_vectors(l, q0, nq, v0)};
      if (!k.nv) continue;
      score_tile(l, w, &k, b, q0, v0);
      softmax_online(k.H, k.HP, nq, k.nv, w->codes, w->row_shift, w->row_scale, w->factor);
    }
  FOR_TILES(l, w, first, i, q0, nq) finish_softmax(l, w, b, q0, nq);
}

static void forward_group(const plan *l, work *w, int64_t b, int64_t first) {
  FOR_TILES(l, w, first, i, q0, nq) open_forward_rows(l, w, b, q0, nq);
  if (l->p.softmax && l->p.hyper) softmax_statistics(l, w, b, first);
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block)
    FOR_TILES(l, w, first, i, q0, nq) {
      const tile k = {l->p.heads, l->p.value_dim, l->heads_padded, nq, visible_vectors(l, q0, nq, v0)};
      if (!k.nv) continue;
      if (l->p.hyper) forward_hyper_tile(l, w, &k, b, q0, v0);
      else forward_linear_tile(l, w, &k, b, q0, v0);
    }
  FOR_TILES(l, w, first, i, q0, nq) close_forward_rows(l, w, b, q0, nq);
}

/* ---------------------------------------------------------------- forward */

/* Every thread takes batch elements, or, when there are few, groups of tiles of queries. The same numbers either way. */
static int forward_batches(const plan *l) {
  int failed = 0;
#pragma omp parallel num_threads(l->p.threads) reduction(| : failed)
  {
    work w;
    const int ready = open_work(l, &w, 1, 0);
    failed |= !ready;
#pragma omp for schedule(dynamic)
    for (int64_t b = 0; b < l->p.batch; b++) {
      if (!ready) continue;
      for (int64_t v = 0; v < l->vectors; v++) pack_vector(l, &w, &w.e, b, v, 0);
      for (int64_t t = 0; t < TILES(l); t += l->group) forward_group(l, &w, b, t);
    }
    free(w.memory);
  }
  return failed;
}

static int forward_tiles(const plan *l) {
  void *memory = NULL;
  packed_element *elements = open_elements(l, 0, &memory);
  int failed = 0;
  if (!elements) return 1;
#pragma omp parallel num_threads(l->p.threads) reduction(| : failed)
  {
    work w;
    const int ready = open_work(l, &w, 0, 0);
    failed |= !ready;
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < l->p.batch * l->vectors; i++)
      if (ready) pack_vector(l, &w, &elements[i / l->vectors], i / l->vectors, i % l->vectors, 0);
#pragma omp for schedule(dynamic)
    for (int64_t i = l->p.batch * TILE_GROUPS(l) - 1; i >= 0; i--) { /* the longest first, if causal */
      if (!ready) continue;
      w.e = elements[i % l->p.batch];
      forward_group(l, &w, i % l->p.batch, i / l->p.batch * l->group);
    }
    free(w.memory);
  }
  free(elements);
  free(memory);
  return failed;
}

#endif
