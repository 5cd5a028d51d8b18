/* The backward pass of one tile: see cpu.c. */
#ifndef RECOMBINE_CPU_GRADIENT_H
#define RECOMBINE_CPU_GRADIENT_H

#include "cpu_mask.h"

/* D of cpu.c for the linear value network, if several blocks need it: sum over features of output times gradient. */
static void dot_output(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim, HP = l->heads_padded;
  read_rows(&p->out, w->scratch, b, q0, nq, H, E, p->bf16, 1);
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < E; f++) {
        int64_t at = (q * H + h) * E + f;
        w->dots[q * ROW_STRIDE + h] += w->scratch[at] * w->g_rows[at];
      }
}

static void read_statistics(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const int64_t H = l->p.heads, HP = l->heads_padded;
  for (int64_t q = 0; q < nq; q++) {
    memcpy(w->row_shift + q * ROW_STRIDE, l->p.row_shift + (b * l->p.queries + q0 + q) * H, H * sizeof(float));
    memcpy(w->row_scale + q * ROW_STRIDE, l->p.row_scale + (b * l->p.queries + q0 + q) * H, H * sizeof(float));
  }
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

/* All that a tile needs beside keys and values: rows of queries, and of gradients of the output before dropout scaled it; for
   a softmax its statistics and, with several blocks, D. */
static void open_backward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim;
  read_rows(&p->q, w->q_rows, b, q0, nq, H, p->dim, p->bf16, l->scale);
  read_rows(&p->grad_out, w->g_rows, b, q0, nq, H, E, p->bf16, 1);
  memset(w->out_rows, 0, nq * H * p->dim * sizeof(float));
  memset(w->dots, 0, nq * l->row_stride * sizeof(float));
  if (p->softmax) read_statistics(l, w, b, q0, nq);
  if (p->softmax && !p->hyper && l->blocks > 1) dot_output(l, w, b, q0, nq);
  scale_all(w->g_rows, nq * H * E, l->factor);
  if (w->g_chunks != w->g_rows) pack_chunks(H, E, nq, w->g_rows, w->g_chunks);
  if (p->softmax && p->hyper && l->blocks > 1)
    for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) row_dots_tile(l, w, b, q0, nq, v0);
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

#endif
