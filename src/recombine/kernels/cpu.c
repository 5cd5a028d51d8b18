/* Fused attention on CPUs, forward and backward: the fast path of recombine/kernels/reference.py.

Nothing of size (query, key, feature) or (head, query, key) is ever stored: a tile of a few queries and at most 64 keys is
computed, used and forgotten, and the backward pass computes it again. Lanes are keys: a `vec` holds one number for each of
LANES neighbouring keys. Keys and values are repacked once per batch element to [key / LANES][head][feature][LANES].

The mathematics, for one query-key pair (s[h] scores, g[h,e] the gradient of out[q,h,e], H heads)

  forward of rms_head + hyper_relu (HYLA). With r = (mean_h s^2 + eps)^(-1/2), a = r s, and relu(r x) = r relu(x) for r > 0:

      out[h,e] += a[h] relu(sum_h' a[h'] v[h',e]) = s[h] r^2 relu(x[e])      x[e] = sum_h s[h] v[h,e]

  so that only r^2 = 1 / (mean_h s^2 + eps) is needed: no square root, and no pass that scales the scores.

  backward. Let u[e] = sum_h s[h] g[h,e]; m[e] = 1 where x[e] > 0 else 0 (hyper_linear: m = 1). The pair contributes
  L = r^2 sum_e m x u, and x and u are both linear in s. Write z = r^2 m x and t = r^2 m u. Then

      dL/dv[h,e] = s[h] t[e]
      dL/ds[h]   = sum_e (z[e] g[h,e] + t[e] v[h,e])  -  s[h] (2 r^2 / H) sum_e z[e] u[e]

  where the last term is the derivative of r^2, d(r^2)/ds[h] = -(2/H) r^4 s[h]. Without rms_head r = 1 and it is absent.

  softmax over keys: da = dL/da as above; ds[h] = a[h] (da[h] - D[h]) with D[h] = sum_k a[h] da[h]. If the keys do not fit in
  one tile, D comes from another pass or, for the linear value network, from D[h] = sum_e out[h,e] g[h,e]. The forward pass
  saves row maximum and inverse row sum.

  linear value network with rms_head: ds[h] = r (da[h] - a[h] mean_h'(a da)).

  scores: dq[q,h] = sum_k ds k[k,h] / sqrt(d), dk[k,h] = sum_q ds q[q,h] / sqrt(d), dbias[h,q,k] = sum over the batch of ds.

Results do not depend on the number of threads, bit for bit: who adds what in which order follows from the shapes alone.
*/
#include "cpu_tile.h"

/* ---------------------------------------------------------------- what the caller gives: mirrored in cpu.py */

typedef struct {
  float *data;
  int64_t batch, head, query, key; /* strides in elements; batch stride 0: shared by the batch */
} pair_tensor;

typedef struct {
  tensor q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  pair_tensor bias, grad_bias;
  const uint8_t *key_mask;      /* (batch, key), 1 = may attend, or NULL */
  float *row_shift, *row_scale; /* (batch, query, head): statistics of the softmax */
  int64_t batch, queries, keys, heads, dim, value_dim;
  int64_t softmax, rms, hyper, relu, causal, bf16, threads;
} problem;

/* ---------------------------------------------------------------- what follows from it */

typedef struct {
  problem p;
  int64_t vectors, block, blocks; /* vectors of keys; at most `block` of them in a tile */
  int64_t heads_padded;
  float scale;                    /* of the scores */
  const float *bias;
  int64_t bias_batch, bias_head, bias_query;
  float *bias_copy, *dots; /* dots: (batch, query, head_padded), for the softmax of hypernetworks over several blocks */
  ivec rms;  /* all ones, or zeros: no normalisation over heads */
  vec floor; /* of the hidden units: zeros, or minus infinity: no relu */
  const products *of_keys, *of_values;
} plan;

/* Keys, values and their gradients, packed, of one batch element. */
typedef struct {
  vec *keys, *values, *grad_keys, *grad_values;
  ivec *visible; /* per vector of keys: which may be attended to by anyone */
} packed_element;

/* Scratch of one thread. */
typedef struct {
  packed_element e;
  vec *codes, *gradient, *hidden, *inverse;
  ivec *mask;
  float *q_rows, *g_rows, *out_rows, *row_shift, *row_scale, *factor, *dots, *scratch;
  void *memory;
} work;

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static int64_t at_most_one_less(int64_t x, int64_t y) { return (x + y - 1) / y; }

static void *allocate(size_t bytes) {
  void *memory = NULL;
  return posix_memalign(&memory, 64, bytes ? bytes : 64) ? NULL : memory;
}

/* Take `bytes` from an arena; with a NULL arena only count. */
static void *take(char *arena, size_t *used, size_t bytes) {
  void *taken = arena ? arena + *used : NULL;
  *used += (bytes + 63) / 64 * 64;
  return taken;
}

static void lay_out_element(const plan *l, packed_element *e, char *arena, size_t *used, int backward) {
  const problem *p = &l->p;
  /* contract_range reads, and ignores, heads past the end */
  size_t keys = (l->vectors * p->heads + 8) * p->dim * sizeof(vec);
  size_t values = (l->vectors * p->heads + 8) * p->value_dim * sizeof(vec);
  e->keys = take(arena, used, keys);
  e->values = take(arena, used, values);
  e->visible = take(arena, used, l->vectors * sizeof(ivec));
  if (!backward) return;
  e->grad_keys = take(arena, used, keys);
  e->grad_values = take(arena, used, values);
}

static size_t lay_out_work(const plan *l, work *w, char *arena, int element, int backward) {
  const problem *p = &l->p;
  const int64_t HP = l->heads_padded;
  size_t used = 0, pairs = l->block * TILE_QUERIES, statistics = TILE_QUERIES * HP * sizeof(float);
  size_t codes = l->block * TILE_STRIDE * sizeof(vec);
  size_t width = p->heads * (p->dim > p->value_dim ? p->dim : p->value_dim), rows = TILE_QUERIES * width * sizeof(float);
  if (element) lay_out_element(l, &w->e, arena, &used, backward);
  w->codes = take(arena, &used, codes);
  w->gradient = take(arena, &used, backward ? codes : 0);
  w->hidden = take(arena, &used, pairs * CHUNK * sizeof(vec));
  w->inverse = take(arena, &used, pairs * sizeof(vec));
  w->mask = take(arena, &used, pairs * sizeof(ivec));
  w->q_rows = take(arena, &used, rows);
  w->g_rows = take(arena, &used, rows);
  w->out_rows = take(arena, &used, rows);
  w->row_shift = take(arena, &used, statistics);
  w->row_scale = take(arena, &used, statistics);
  w->factor = take(arena, &used, statistics);
  w->dots = take(arena, &used, statistics);
  w->scratch = take(arena, &used, (LANES + TILE_QUERIES) * (width + 8) * sizeof(float));
  return used;
}

static int open_work(const plan *l, work *w, int element, int backward) {
  memset(w, 0, sizeof *w);
  size_t bytes = lay_out_work(l, w, NULL, element, backward);
  if (!(w->memory = allocate(bytes))) return 0;
  memset(w->memory, 0, bytes); /* what is padding must be finite */
  lay_out_work(l, w, w->memory, element, backward);
  return 1;
}

static void pack_vector(const plan *l, work *w, packed_element *e, int64_t b, int64_t v, int backward) {
  const problem *p = &l->p;
  int64_t keys = p->heads * p->dim, values = p->heads * p->value_dim;
  pack(e->keys + v * keys, &p->k, b, v * LANES, p->keys, p->heads, p->dim, p->bf16, w->scratch);
  pack(e->values + v * values, &p->v, b, v * LANES, p->keys, p->heads, p->value_dim, p->bf16, w->scratch);
  for (int64_t i = 0; i < LANES; i++) {
    int64_t key = v * LANES + i;
    e->visible[v][i] = key < p->keys && (!p->key_mask || p->key_mask[b * p->keys + key]) ? -1 : 0;
  }
  if (!backward) return;
  memset(e->grad_keys + v * keys, 0, keys * sizeof(vec));
  memset(e->grad_values + v * values, 0, values * sizeof(vec));
}

static void unpack_vector(const plan *l, work *w, const packed_element *e, int64_t b, int64_t v) {
  const problem *p = &l->p;
  unpack(&p->grad_k, b, v * LANES, p->keys, e->grad_keys + v * p->heads * p->dim, p->heads, p->dim, p->bf16, w->scratch);
  unpack(&p->grad_v, b, v * LANES, p->keys, e->grad_values + v * p->heads * p->value_dim, p->heads, p->value_dim, p->bf16,
         w->scratch);
}

static void read_rows(const tensor *t, float *rows, int64_t b, int64_t q0, int64_t nq, int64_t heads, int64_t dim,
                      int64_t bf16, float scale) {
  for (int64_t q = 0; q < nq; q++) read_row(rows + q * heads * dim, t, b, q0 + q, heads, dim, bf16);
  if (scale != 1)
    for (int64_t i = 0; i < nq * heads * dim; i++) rows[i] *= scale;
}

/* ---------------------------------------------------------------- one tile */

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

static void start_softmax(const plan *l, work *w, int64_t nq) {
  for (int64_t i = 0; i < nq * l->heads_padded; i++) {
    w->row_shift[i] = -INFINITY;
    w->row_scale[i] = 0;
  }
}

/* From sums to inverse sums, and save the statistics; rows without any key keep codes of 0. */
static void finish_softmax(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const int64_t H = l->p.heads, HP = l->heads_padded;
  for (int64_t i = 0; i < nq * HP; i++) {
    w->row_shift[i] = w->row_shift[i] == -INFINITY ? 0 : w->row_shift[i];
    w->row_scale[i] = w->row_scale[i] == 0 ? 0 : 1 / w->row_scale[i];
  }
  for (int64_t q = 0; q < nq; q++) {
    memcpy(l->p.row_shift + (b * l->p.queries + q0 + q) * H, w->row_shift + q * HP, H * sizeof(float));
    memcpy(l->p.row_scale + (b * l->p.queries + q0 + q) * H, w->row_scale + q * HP, H * sizeof(float));
  }
}

/* ---------------------------------------------------------------- forward: a few queries of one batch element */

/* A hypernetwork needs the final codes: the sums of all rows before anything else. */
static void softmax_statistics(const plan *l, work *w, tile k, int64_t b, int64_t q0) {
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) {
    if (!(k.nv = visible_vectors(l, q0, k.nq, v0))) break;
    score_tile(l, w, &k, b, q0, v0);
    softmax_online(k.H, k.HP, k.nq, k.nv, w->codes, w->row_shift, w->row_scale, w->factor);
  }
  finish_softmax(l, w, b, q0, k.nq);
}

static void forward_hyper_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  const int64_t softmax = l->p.softmax;
  if (softmax && l->blocks == 1) /* softmax_statistics has left the codes there */
    scale_codes(k->H, k->HP, k->nq, k->nv, w->codes, w->row_scale);
  else {
    score_tile(l, w, k, b, q0, v0);
    if (softmax) softmax_final(k->H, k->HP, k->nq, k->nv, w->codes, w->row_shift, w->row_scale);
  }
  if (l->p.rms && !l->of_values->once) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->hyper_forward(k, l->rms, l->floor, w->codes, w->e.values + v0 * k->H * k->F, w->hidden, w->out_rows);
}

static void forward_linear_tile(const plan *l, work *w, const tile *k, int64_t b, int64_t q0, int64_t v0) {
  score_tile(l, w, k, b, q0, v0);
  if (l->p.softmax) {
    softmax_online(k->H, k->HP, k->nq, k->nv, w->codes, w->row_shift, w->row_scale, w->factor);
    if (v0) l->of_values->scale_rows(k, w->out_rows, w->factor);
  }
  if (l->p.rms) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->contract(k, w->codes, w->e.values + v0 * k->H * k->F, w->out_rows);
}

static void forward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim;
  tile k = {H, E, l->heads_padded, nq, 0};
  read_rows(&p->q, w->q_rows, b, q0, nq, H, p->dim, p->bf16, l->scale);
  memset(w->out_rows, 0, nq * H * E * sizeof(float));
  if (p->softmax) start_softmax(l, w, nq);
  if (p->softmax && p->hyper) softmax_statistics(l, w, k, b, q0);
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) {
    if (!(k.nv = visible_vectors(l, q0, nq, v0))) break;
    if (p->hyper) forward_hyper_tile(l, w, &k, b, q0, v0);
    else forward_linear_tile(l, w, &k, b, q0, v0);
  }
  if (p->softmax && !p->hyper) {
    finish_softmax(l, w, b, q0, nq);
    l->of_values->scale_rows(&k, w->out_rows, w->row_scale);
  }
  for (int64_t q = 0; q < nq; q++) write_row(&p->out, b, q0 + q, w->out_rows + q * H * E, H, E, p->bf16);
}

/* ---------------------------------------------------------------- backward: one tile */

/* Rows of queries and of gradients, and what the softmax needs of them. */
static void open_backward_rows(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq) {
  const problem *p = &l->p;
  const int64_t H = p->heads, E = p->value_dim, HP = l->heads_padded;
  read_rows(&p->q, w->q_rows, b, q0, nq, H, p->dim, p->bf16, l->scale);
  read_rows(&p->grad_out, w->g_rows, b, q0, nq, H, E, p->bf16, 1);
  if (!p->softmax) return;
  for (int64_t q = 0; q < nq; q++) {
    memcpy(w->row_shift + q * HP, p->row_shift + (b * p->queries + q0 + q) * H, H * sizeof(float));
    memcpy(w->row_scale + q * HP, p->row_scale + (b * p->queries + q0 + q) * H, H * sizeof(float));
  }
  if (l->dots) memcpy(w->dots, l->dots + (b * p->queries + q0) * HP, nq * HP * sizeof(float));
  else memset(w->dots, 0, nq * HP * sizeof(float));
  if (p->hyper || l->blocks == 1) return;
  read_rows(&p->out, w->scratch, b, q0, nq, H, E, p->bf16, 1);
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < E; f++) {
        int64_t at = (q * H + h) * E + f;
        w->dots[q * HP + h] += w->scratch[at] * w->g_rows[at];
      }
}

/* The gradient of the codes (softmax) or of the scores (otherwise); and, if wanted, add to the gradient of values. */
static void hyper_gradient(const plan *l, work *w, const tile *k, int64_t v0, int to_values) {
  const int64_t at = v0 * k->H * k->F;
  const int apart = l->p.rms && !l->of_values->once; /* normalise over heads before, and differentiate that after */
  if (apart) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->hyper_backward(k, l->rms, l->floor, w->codes, w->e.values + at, w->g_rows, w->hidden, w->gradient,
                               to_values ? w->e.grad_values + at : NULL);
  if (!apart) return;
  rms_backward(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse, w->gradient);
  if (l->p.softmax) restore_codes(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
}

/* dots += sum over keys of code times gradient of the code: another pass, before any gradient is used */
static void row_dots_tile(const plan *l, work *w, int64_t b, int64_t q0, int64_t nq, int64_t v0) {
  const tile k = {l->p.heads, l->p.value_dim, l->heads_padded, nq, visible_vectors(l, q0, nq, v0)};
  if (!k.nv) return;
  score_tile(l, w, &k, b, q0, v0);
  softmax_final(k.H, k.HP, nq, k.nv, w->codes, w->row_shift, w->row_scale);
  hyper_gradient(l, w, &k, v0, 0);
  add_row_dots(k.HP, nq, k.nv, w->codes, w->gradient, w->dots);
}

static void linear_gradient(const plan *l, work *w, const tile *k, int64_t v0, int64_t first_masked) {
  const int64_t at = v0 * k->H * k->F;
  l->of_values->score(k, w->e.values + at, w->g_rows, NULL, 0, 0, w->gradient);
  if (l->p.rms) rms_over_heads(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse);
  l->of_values->spread(k, w->codes, w->g_rows, w->e.grad_values + at);
  if (l->p.rms) rms_backward(k->H, k->HP, k->nq, k->nv, w->codes, w->inverse, w->gradient);
  if (!l->p.softmax) apply_mask(k, first_masked, w->mask, splat(0), w->gradient);
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
  if (p->hyper) hyper_gradient(l, w, &k, v0, 1);
  else linear_gradient(l, w, &k, v0, first_masked);
  if (p->softmax) {
    if (l->blocks == 1) add_row_dots(k.HP, nq, k.nv, w->codes, w->gradient, w->dots);
    softmax_backward(k.H, k.HP, nq, k.nv, w->codes, w->dots, w->gradient);
  }
  if (grad_bias) add_grad_bias(l, &k, w->gradient, grad_bias, q0, v0);
  l->of_keys->spread(&of_keys, w->gradient, w->q_rows, w->e.grad_keys + at);
  l->of_keys->contract(&of_keys, w->gradient, w->e.keys + at, w->out_rows);
}

/* ---------------------------------------------------------------- plans */

/* A copy of the bias with rows padded to whole vectors, unless it is laid out so already. */
static int open_bias(plan *l) {
  const problem *p = &l->p;
  const pair_tensor *from = &p->bias;
  if (!from->data) return 1;
  if (from->key == 1 && p->keys % LANES == 0) {
    l->bias = from->data, l->bias_batch = from->batch, l->bias_head = from->head, l->bias_query = from->query;
    return 1;
  }
  const int64_t row = l->vectors * LANES, copies = from->batch ? p->batch : 1, H = p->heads;
  if (!(l->bias_copy = allocate(copies * p->queries * H * row * sizeof(float)))) return 0;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (copies * p->queries * H * row > 65536)
  for (int64_t bq = 0; bq < copies * p->queries; bq++)
    for (int64_t h = 0; h < H; h++) {
      const float *source = from->data + bq / p->queries * from->batch + h * from->head + bq % p->queries * from->query;
      float *to = l->bias_copy + (bq * H + h) * row;
      for (int64_t k = 0; k < p->keys; k++) to[k] = source[k * from->key];
      for (int64_t k = p->keys; k < row; k++) to[k] = 0;
    }
  l->bias = l->bias_copy, l->bias_query = H * row, l->bias_head = row;
  l->bias_batch = from->batch ? p->queries * H * row : 0;
  return 1;
}

static int open_plan(plan *l, const problem *p, int64_t most_vectors) {
  memset(l, 0, sizeof *l);
  l->p = *p;
  l->scale = 1 / sqrtf((float)p->dim);
  l->vectors = at_most_one_less(p->keys, LANES);
  l->heads_padded = at_most_one_less(p->heads, 8) * 8;
  /* keys, values and their gradients of a block should stay in a second-level cache */
  int64_t bytes = 2 * p->heads * (p->dim + p->value_dim) * (int64_t)sizeof(vec), fit = (512 << 10) / bytes;
  int64_t most = smaller(most_vectors, fit < 1 ? 1 : fit);
  l->blocks = at_most_one_less(l->vectors, most);
  l->block = at_most_one_less(l->vectors, l->blocks);
  l->blocks = at_most_one_less(l->vectors, l->block);
  l->of_keys = choose_products(p->heads, p->dim), l->of_values = choose_products(p->heads, p->value_dim);
  l->rms = (ivec){0} - (int32_t)(p->rms != 0), l->floor = splat(p->relu ? 0 : -INFINITY);
  return open_bias(l);
}

static void close_plan(plan *l) {
  free(l->bias_copy);
  free(l->dots);
}

/* Packed keys and values of all batch elements at once, for work that several threads share. */
static packed_element *open_elements(const plan *l, int backward, void **memory) {
  const int64_t batch = l->p.batch;
  packed_element *elements = calloc(batch, sizeof *elements);
  size_t bytes = 0;
  if (!elements) return NULL;
  for (int64_t b = 0; b < batch; b++) lay_out_element(l, &elements[b], NULL, &bytes, backward);
  if (!(*memory = allocate(bytes))) {
    free(elements);
    return NULL;
  }
  bytes = 0;
  for (int64_t b = 0; b < batch; b++) lay_out_element(l, &elements[b], *memory, &bytes, backward);
  return elements;
}

#define TILES(l) at_most_one_less((l)->p.queries, TILE_QUERIES)
#define TILE(l, t, q0, nq) \
  const int64_t q0 = (t) * TILE_QUERIES, nq = smaller(TILE_QUERIES, (l)->p.queries - q0)

/* ---------------------------------------------------------------- forward */

/* Every thread takes batch elements, or, when there are few, tiles of queries. The same numbers either way. */
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
      for (int64_t t = 0; t < TILES(l); t++) {
        TILE(l, t, q0, nq);
        forward_rows(l, &w, b, q0, nq);
      }
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
    for (int64_t i = 0; i < l->p.batch * TILES(l); i++) {
      if (!ready) continue;
      TILE(l, i % TILES(l), q0, nq);
      w.e = elements[i / TILES(l)];
      forward_rows(l, &w, i / TILES(l), q0, nq);
    }
    free(w.memory);
  }
  free(elements);
  free(memory);
  return failed;
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_attend_forward(const problem *p) {
  plan l;
  int failed = 1;
  if (open_plan(&l, p, BLOCK_VECTORS)) failed = p->batch >= 4 * p->threads ? forward_batches(&l) : forward_tiles(&l);
  close_plan(&l);
  return failed;
}

/* ---------------------------------------------------------------- backward */

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
  float *dots = l->dots + (b * l->p.queries + q0) * l->heads_padded;
  memset(dots, 0, nq * l->heads_padded * sizeof(float));
  open_backward_rows(l, w, b, q0, nq);
  for (int64_t v0 = 0; v0 < l->vectors; v0 += l->block) row_dots_tile(l, w, b, q0, nq, v0);
  memcpy(dots, w->dots, nq * l->heads_padded * sizeof(float));
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

/* Returns 0, or 1 if there is not enough memory. The choice below may depend on shapes only. */
int recombine_attend_backward(const problem *p) {
  plan l;
  const int64_t pairs = p->heads * p->queries * p->keys;
  const int shared = p->grad_bias.data && !p->grad_bias.batch;
  const int steps = (p->batch < 16 && pairs * (p->dim + p->value_dim) > 1 << 20) || (shared && pairs > 1 << 20);
  /* enough blocks for the threads to share */
  int64_t most = steps ? at_most_one_less(at_most_one_less(p->keys, LANES), 16) : BLOCK_VECTORS;
  int failed = !open_plan(&l, p, smaller(most, BLOCK_VECTORS));
  if (!failed && p->softmax && p->hyper && l.blocks > 1) {
    l.dots = allocate(p->batch * p->queries * l.heads_padded * sizeof(float));
    failed = !l.dots;
  }
  if (!failed) failed = steps ? backward_steps(&l) : backward_batches(&l);
  close_plan(&l);
  return failed;
}
