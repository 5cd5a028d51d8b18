/* The backward pass: who works on which tiles, in an order that does not depend on the number of threads. See cpu.c. */
#ifndef RECOMBINE_CPU_BACKWARD_H
#define RECOMBINE_CPU_BACKWARD_H

#include "cpu_gradient.h"

#define GROUPS 8 /* the batch is cut into so many groups, each with its own sum of bias gradients */

/* grad_bias = sum over buffers, in their order */
static void write_grad_bias(const plan *l, int64_t b, const vec *buffers, int64_t count) {
  const problem *p = &l->p;
  const pair_tensor *to = &p->grad_bias;
  const int64_t H = p->heads, size = p->queries * l->vectors * H;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (count > 1)
  for (int64_t q = 0; q < p->queries; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t v = 0; v < l->vectors; v++) {
        const vec *from = buffers + (q * l->vectors + v) * H + h;
        vec sum = from[0];
        for (int64_t i = 1; i < count; i++) sum += from[i * size];
        float *out = to->data + b * to->batch + h * to->head + q * to->query + v * LANES * to->key;
        for (int64_t i = 0; i < LANES && v * LANES + i < p->keys; i++) out[i * to->key] = sum[i];
      }
}

/* The gradient of a tile's queries, which was summed in out_rows. */
static void write_grad_q(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const int64_t width = l->p.heads * l->p.dim;
  scale_all(w->out_rows, nq * width, l->scale);
  for (int64_t q = 0; q < nq; q++)
    write_row(&l->p.grad_q, b, q0 + q, w->out_rows + q * width, l->p.heads, l->p.dim, l->p.bf16);
}

static void backward_element(const plan *l, work *w, int64_t b, vec *grad_bias) {
  for (int64_t v = 0; v < l->vectors; v++) pack_vector(l, w, &w->e, b, v, 1);
  for (int64_t t = 0; t < TILES(l); t++) {
    TILE(l, t, q0, nq);
    open_backward_rows(l, w, b, q0, nq);
    for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) backward_tile(l, w, b, q0, nq, v0, grad_bias);
    write_grad_q(l, w, b, q0, nq);
  }
  for (int64_t v = 0; v < l->vectors; v++) unpack_vector(l, w, &w->e, b, v);
}

/* Every thread takes batch elements. Bias gradients of a shared bias are summed within groups of the batch first. */
static int backward_batches(const plan *l) {
  const problem *p = &l->p;
  const int shared = p->grad_bias.data && !p->grad_bias.batch;
  const int64_t groups = shared ? smaller(GROUPS, p->batch) : p->batch, size = p->queries * l->vectors * p->heads;
  vec *sums = shared ? allocate(groups * size * sizeof(vec)) : NULL;
  int failed = shared && !sums;
#pragma omp parallel num_threads(p->threads) reduction(| : failed) if (!failed)
  {
    work w;
    vec *own = p->grad_bias.data && !shared ? allocate(size * sizeof(vec)) : NULL;
    const int ready = open_work(l, &w, 1, 1) && !failed && (own || !p->grad_bias.data || shared);
    failed |= !ready;
#pragma omp for schedule(dynamic)
    for (int64_t g = 0; g < groups; g++) {
      if (!ready) continue;
      vec *grad_bias = shared ? sums + g * size : own;
      if (grad_bias) memset(grad_bias, 0, size * sizeof(vec));
      for (int64_t b = g * p->batch / groups; b < (g + 1) * p->batch / groups; b++) backward_element(l, &w, b, grad_bias);
      if (own) write_grad_bias(l, g, own, 1);
    }
    free(own);
    free(w.memory);
  }
  if (shared && !failed) write_grad_bias(l, 0, sums, groups);
  free(sums);
  return failed;
}

/* Long sequences: threads share batch elements without a copy of any gradient per thread. The keys are cut into blocks, the
   queries into groups. In step i, group g of batch element b works on block (i + g + b) mod blocks: no two items of a step
   touch the same block of keys of one element, nor the same patch of a bias gradient that the batch shares, and every sum is
   made in the order of the steps. Rows are read once, not for each block. */
typedef struct {
  packed_element *elements;
  void *memory;
  float *q, *g, *grad_q, *dots; /* of tiles, as in `work` */
  vec *grad_bias;
  int64_t copies; /* of grad_bias: none, one, or one per batch element */
} shared_work;

static int open_shared(const plan *l, shared_work *s) {
  const problem *p = &l->p;
  const int64_t rows = p->batch * TILES(l) * TILE_QUERIES, size = p->queries * l->vectors * p->heads;
  memset(s, 0, sizeof *s);
  s->copies = !p->grad_bias.data ? 0 : p->grad_bias.batch ? p->batch : 1;
  s->elements = open_elements(l, 1, &s->memory);
  s->q = allocate(rows * p->heads * p->dim * sizeof(float));
  s->g = allocate(rows * p->heads * p->value_dim * sizeof(float));
  s->grad_q = allocate(rows * p->heads * p->dim * sizeof(float));
  s->dots = allocate(p->softmax ? rows * l->row_stride * sizeof(float) : 0);
  s->grad_bias = s->copies ? allocate(s->copies * size * sizeof(vec)) : NULL;
  if (s->grad_bias) memset(s->grad_bias, 0, s->copies * size * sizeof(vec));
  return s->elements && s->q && s->g && s->grad_q && s->dots && (s->grad_bias || !s->copies);
}

static void close_shared(shared_work *s) {
  void *const all[] = {s->elements, s->memory, s->q, s->g, s->grad_q, s->dots, s->grad_bias};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Let a thread work on the rows of a tile where they are. */
static void choose_tile(const plan *l, work *w, const shared_work *s, int64_t b, int64_t t) {
  const problem *p = &l->p;
  const int64_t row = (b * TILES(l) + t) * TILE_QUERIES, keys = p->heads * p->dim, values = p->heads * p->value_dim;
  w->e = s->elements[b];
  w->q_rows = s->q + row * keys, w->out_rows = s->grad_q + row * keys;
  if (p->softmax) w->dots = s->dots + row * l->row_stride;
  if (w->g_chunks == w->g_rows) w->g_rows = s->g + row * values;
  w->g_chunks = s->g + row * values;
}

static void backward_item(const plan *l, work *w, const shared_work *s, int64_t b, int64_t group, int64_t groups,
                          int64_t block) {
  const int64_t size = l->p.queries * l->vectors * l->p.heads;
  vec *grad_bias = s->copies ? s->grad_bias + (s->copies > 1 ? b * size : 0) : NULL;
  for (int64_t t = group; t < TILES(l); t += groups) {
    TILE(l, t, q0, nq);
    if (!visible_vectors(l, q0, nq, block * l->block)) continue;
    choose_tile(l, w, s, b, t);
    if (l->p.softmax) read_statistics(l, w, b, q0, nq);
    backward_tile(l, w, b, q0, nq, block * l->block, grad_bias);
  }
}

static void backward_steps_of_thread(const plan *l, work *w, const shared_work *s, int ready) {
  const problem *p = &l->p;
  const int64_t groups = smaller(smaller(l->blocks, TILES(l)), 16), tiles = p->batch * TILES(l);
  const int64_t round = s->copies == 1 ? smaller(p->batch, l->blocks) : p->batch;
#pragma omp for schedule(dynamic, 4)
  for (int64_t i = 0; i < p->batch * l->vectors; i++)
    if (ready) pack_vector(l, w, &s->elements[i / l->vectors], i / l->vectors, i % l->vectors, 1);
#pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < tiles; i++) {
    if (!ready) continue;
    TILE(l, i % TILES(l), q0, nq);
    choose_tile(l, w, s, i / TILES(l), i % TILES(l));
    open_backward_rows(l, w, i / TILES(l), q0, nq);
  }
  for (int64_t first = 0; first < p->batch; first += round)
    for (int64_t step = 0; step < l->blocks; step++) {
      const int64_t items = smaller(round, p->batch - first) * groups;
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < items; i++)
        if (ready) backward_item(l, w, s, first + i / groups, i % groups, groups, (step + i % groups + i / groups) % l->blocks);
    }
#pragma omp for schedule(static)
  for (int64_t i = 0; i < tiles; i++) {
    if (!ready) continue;
    TILE(l, i % TILES(l), q0, nq);
    choose_tile(l, w, s, i / TILES(l), i % TILES(l));
    write_grad_q(l, w, i / TILES(l), q0, nq);
  }
#pragma omp for schedule(static)
  for (int64_t i = 0; i < p->batch * l->vectors; i++)
    if (ready) unpack_vector(l, w, &s->elements[i / l->vectors], i / l->vectors, i % l->vectors);
}

static int backward_steps(const plan *l) {
  shared_work s;
  const int opened = open_shared(l, &s);
  int failed = !opened;
#pragma omp parallel num_threads(l->p.threads) reduction(| : failed) if (opened)
  {
    work w;
    const int ready = open_work(l, &w, 0, 1) && opened;
    failed |= !ready;
    backward_steps_of_thread(l, &w, &s, ready);
    free(w.memory);
  }
  const int64_t size = l->p.queries * l->vectors * l->p.heads;
  for (int64_t b = 0; b < s.copies && !failed; b++) write_grad_bias(l, b, s.grad_bias + b * size, 1);
  close_shared(&s);
  return failed;
}

#endif
