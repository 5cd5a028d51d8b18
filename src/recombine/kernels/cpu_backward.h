/* The backward pass: see cpu.c. */
#ifndef RECOMBINE_CPU_BACKWARD_H
#define RECOMBINE_CPU_BACKWARD_H

#include "cpu_mask.h"

/* What the softmax needs of a few rows: its statistics and, where another pass or the output gives it, D of cpu.c. */
static void open_softmax_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim, HP = l->heads_padded;
  for (int64_t q = 0; q < nq; q++) {
    memcpy(w->row_shift + q * ROW_STRIDE, p->row_shift + (b * p->queries + q0 + q) * H, H * sizeof(float));
    memcpy(w->row_scale + q * ROW_STRIDE, p->row_scale + (b * p->queries + q0 + q) * H, H * sizeof(float));
  }
  if (l->dots) memcpy(w->dots, l->dots + (b * p->queries + q0) * ROW_STRIDE, nq * ROW_STRIDE * sizeof(float));
  else memset(w->dots, 0, nq * ROW_STRIDE * sizeof(float));
  if (p->hyper || l->blocks == 1) return;
  read_rows(&p->out, w->scratch, b, q0, nq, H, E, p->bf16, 1);
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < E; f++) {
        int64_t at = (q * H + h) * E + f;
        w->dots[q * ROW_STRIDE + h] += w->scratch[at] * w->g_rows[at];
      }
}

/* Rows of queries and of gradients: those of the output before dropout has scaled it. */
static void open_backward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim;
  read_rows(&p->q, w->q_rows, b, q0, nq, H, p->dim, p->bf16, l->scale);
  read_rows(&p->grad_out, w->g_rows, b, q0, nq, H, E, p->bf16, 1);
  if (p->softmax) open_softmax_rows(l, w, b, q0, nq);
  scale_all(w->g_rows, nq * H * E, l->factor);
  if (p->hyper && !ONE_CHUNK(E)) pack_chunks(H, E, nq, w->g_rows, w->g_chunks);
}

/* The codes as the value network used them: without those that were dropped, while the others stay as they are. */
static const vec *used_codes(const plan *l, work *w, const tile *k) {
  if (!l->drop_late) return w->codes;
  drop_codes(l, w, k, w->codes, w->dropped);
  return w->dropped;
}

/* The gradient of the codes (softmax) or of the scores (otherwise); and, if wanted, add to the gradient of values. */
static void hyper_gradient(const plan *l, work *w, const tile *k, int64_t v0, int64_t first_masked, int to_values) {
  const int64_t at = v0 * k->H * k->F;
  if (l->rms_apart) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->hyper_backward(k, l->rms, l->floor, used_codes(l, w, k), w->e.values + at, w->g_chunks, w->hidden, w->gradient,
                               to_values ? w->e.grad_values + at : NULL);
  if (l->drop_late) drop_codes(l, w, k, w->gradient, w->gradient);
  if (l->rms_apart) rms_backward(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse, w->gradient);
  if (l->rms_apart && l->p.softmax) restore_codes(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  /* a pair that is masked for all heads has no gradient by itself */
  if (l->mask_per_head && !l->p.softmax) apply_mask(l, w, k, first_masked, splat(0), w->gradient);
}

/* dots += sum over keys of code times gradient of the code: another pass, before any gradient is used */
static void row_dots_tile(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq, int64_t v0) {
  const tile k = {l->p.heads, l->p.value_dim, l->heads_padded, nq, visible_vectors(l, q0, nq, v0)};
  if (!k.nv) return;
  const int64_t first_masked = score_tile(l, w, &k, b, q0, v0);
  softmax_final(k.H, k.HP, nq, k.nv, w->codes, w->row_shift, w->row_scale);
  hyper_gradient(l, w, &k, v0, first_masked, 0);
  add_row_dots(k.HP, nq, k.nv, w->codes, w->gradient, w->dots);
}

static void linear_gradient(const plan *l, work *w, const tile *k, int64_t v0, int64_t first_masked) {
  const int64_t at = v0 * k->H * k->F;
  l->of_values->score(k, w->e.values + at, w->g_rows, NULL, 0, 0, w->gradient);
  if (l->rms_apart) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->spread(k, used_codes(l, w, k), w->g_rows, w->e.grad_values + at);
  if (l->drop_late) drop_codes(l, w, k, w->gradient, w->gradient);
  if (l->rms_apart) rms_backward(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse, w->gradient);
  if (!l->p.softmax) apply_mask(l, w, k, first_masked, splat(0), w->gradient);
}

/* Sums of bias gradients are laid out as tiles are: [query][vector of keys][head]. */
static void add_grad_bias(const plan *l, const tile *k, const vec *gradient, vec *grad_bias, int64_t q0, int64_t v0) {
  const int64_t H = k->H, HP = k->HP;
  for (int64_t q = 0; q < k->nq; q++)
    for (int64_t v = 0; v < k->nv; v++) {
      vec *sum = grad_bias + ((q0 + q) * l->vectors + v0 + v) * H;
      for (int64_t h = 0; h < H; h++) sum[h] += gradient[AT(v, q) + h];
    }
}

/* Add a tile's part to the gradients of keys, values and bias, and (in out_rows, unscaled) of queries. */
static void backward_tile(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq, int64_t v0, vec *grad_bias) {
  const problem *p = &l->p;
  const tile k = {p->heads, p->value_dim, l->heads_padded, nq, visible_vectors(l, q0, nq, v0)};
  const tile of_keys = {k.H, p->dim, k.HP, nq, k.nv};
  const int64_t at = v0 * k.H * p->dim;
  if (!k.nv) return;
  const int64_t first_masked = score_tile(l, w, &k, b, q0, v0);
  if (p->softmax) softmax_final(k.H, k.HP, nq, k.nv, w->codes, w->row_shift, w->row_scale);
  if (p->hyper) hyper_gradient(l, w, &k, v0, first_masked, 1);
  else linear_gradient(l, w, &k, v0, first_masked);
  if (p->softmax) {
    if (l->blocks == 1) add_row_dots(k.HP, nq, k.nv, w->codes, w->gradient, w->dots);
    softmax_backward(k.H, k.HP, nq, k.nv, w->codes, w->dots, w->gradient);
  }
  if (grad_bias) add_grad_bias(l, &k, w->gradient, grad_bias, q0, v0);
  l->of_keys->spread(&of_keys, w->gradient, w->q_rows, w->e.grad_keys + at);
  contract_block(l, l->of_keys, &of_keys, &p->k, b, v0, w->gradient, w->e.keys, w->out_rows);
}

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

static void fill_row_dots(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  float *dots = l->dots + (b * l->p.queries + q0) * l->row_stride;
  memset(dots, 0, nq * l->row_stride * sizeof(float));
  open_backward_rows(l, w, b, q0, nq);
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) row_dots_tile(l, w, b, q0, nq, v0);
  memcpy(dots, w->dots, nq * l->row_stride * sizeof(float));
}

static void backward_element(const plan *l, work *w, int64_t b, vec *grad_bias) {
  const problem *p = &l->p;
  for (int64_t v = 0; v < l->vectors; v++) pack_vector(l, w, &w->e, b, v, 1);
  for (int64_t t = 0; t < TILES(l); t++) {
    TILE(l, t, q0, nq);
    const int64_t width = p->heads * p->dim;
    if (l->dots) fill_row_dots(l, w, b, q0, nq);
    open_backward_rows(l, w, b, q0, nq);
    memset(w->out_rows, 0, nq * width * sizeof(float));
    for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) backward_tile(l, w, b, q0, nq, v0, grad_bias);
    for (int64_t i = 0; i < nq * width; i++) w->out_rows[i] *= l->scale;
    for (int64_t q = 0; q < nq; q++) write_row(&p->grad_q, b, q0 + q, w->out_rows + q * width, p->heads, p->dim, p->bf16);
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
   made in the order of the steps. */
static void backward_item(const plan *l, work *w, float *grad_q, vec *grad_bias, int64_t b, int64_t group, int64_t groups,
                          int64_t block) {
  const int64_t width = l->p.heads * l->p.dim;
  for (int64_t t = group; t < TILES(l); t += groups) {
    TILE(l, t, q0, nq);
    if (!visible_vectors(l, q0, nq, block * l->block)) continue;
    open_backward_rows(l, w, b, q0, nq);
    memset(w->out_rows, 0, nq * width * sizeof(float));
    backward_tile(l, w, b, q0, nq, block * l->block, grad_bias);
    float *to = grad_q + (b * l->p.queries + q0) * width;
    for (int64_t i = 0; i < nq * width; i++) to[i] += w->out_rows[i] * l->scale;
  }
}

static int backward_steps(const plan *l) {
  const problem *p = &l->p;
  const int shared = p->grad_bias.data && !p->grad_bias.batch;
  const int64_t groups = smaller(smaller(l->blocks, TILES(l)), 16), size = p->queries * l->vectors * p->heads;
  const int64_t round = shared ? smaller(p->batch, l->blocks) : p->batch, width = p->heads * p->dim;
  const int64_t copies = !p->grad_bias.data ? 0 : shared ? 1 : p->batch;
  void *memory = NULL;
  packed_element *elements = open_elements(l, 1, &memory);
  float *grad_q = calloc(p->batch * p->queries * width, sizeof(float));
  vec *grad_bias = copies ? allocate(copies * size * sizeof(vec)) : NULL;
  if (grad_bias) memset(grad_bias, 0, copies * size * sizeof(vec));
  int failed = !elements || !grad_q || (copies && !grad_bias);
#pragma omp parallel num_threads(p->threads) reduction(| : failed) if (!failed)
  {
    work w;
    const int ready = open_work(l, &w, 0, 1) && elements && grad_q && (grad_bias || !copies);
    failed |= !ready;
#pragma omp for schedule(dynamic, 4)
    for (int64_t i = 0; i < p->batch * l->vectors; i++)
      if (ready) pack_vector(l, &w, &elements[i / l->vectors], i / l->vectors, i % l->vectors, 1);
    if (l->dots) {
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < p->batch * TILES(l); i++) {
        if (!ready) continue;
        TILE(l, i % TILES(l), q0, nq);
        w.e = elements[i / TILES(l)];
        fill_row_dots(l, &w, i / TILES(l), q0, nq);
      }
    }
    for (int64_t first = 0; first < p->batch; first += round)
      for (int64_t step = 0; step < l->blocks; step++) {
        const int64_t items = smaller(round, p->batch - first) * groups;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < items; i++) {
          if (!ready) continue;
          const int64_t b = first + i / groups, g = i % groups;
          w.e = elements[b];
          backward_item(l, &w, grad_q, grad_bias ? grad_bias + (shared ? 0 : b * size) : NULL, b, g, groups,
                        (step + g + i / groups) % l->blocks);
        }
      }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->batch * p->queries; i++)
      if (ready) write_row(&p->grad_q, i / p->queries, i % p->queries, grad_q + i * width, p->heads, p->dim, p->bf16);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->batch * l->vectors; i++)
      if (ready) unpack_vector(l, &w, &elements[i / l->vectors], i / l->vectors, i % l->vectors);
    free(w.memory);
  }
  for (int64_t b = 0; b < copies && !failed; b++) write_grad_bias(l, b, grad_bias + b * size, 1);
  free(grad_bias);
  free(grad_q);
  free(elements);
  free(memory);
  return failed;
}

#endif
