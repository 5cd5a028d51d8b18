/* HYLA with two layers in the value network, forward and backward: `hyper_deep` with rms_head of definition.py.

    x[e]   = relu(sum_h a[h] v[h,e])                 a = s / sqrt(mean_h s^2 + epsilon), the latent code of a query and a key
    y[f]   = relu(sum_h a[h] (W[h] x)[f])
    out[h] = sum over keys of a[h] y

With G the gradient of out, t = [y > 0] sum_h a[h] G[h] and r = [x > 0] sum_h a[h] W[h]^T t:

    dL/da[h] = G[h] . y + t . (W[h] x) + r . v[h]      dL/dv[h] = a[h] r      dL/dW[h,f,e] = a[h] t[f] x[e]

Lanes are keys, as in cpu.c. The batch is cut into parts by its size alone; each sums the gradients of W and of the bias on its
own, and the parts are added in order: the numbers do not depend on the number of threads.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"

#define MOST_PARTS 16
#define EPSILON 1e-6f
#define MOST_VALUES 64 /* features of a value */

typedef struct {
  const float *q, *k, *v, *bias, *weight; /* (batch, token, head, feature) with strides; (head, query, key) or NULL; (head, e, e) */
  float *out;                             /* (batch, query, head, e) */
  const float *grad_out;
  float *grad_q, *grad_k, *grad_v, *grad_bias, *grad_weight; /* contiguous; grad_bias NULL without a bias */
  int64_t batch, queries, keys, heads, dim, value_dim;
  int64_t q_batch, q_token, k_batch, k_token, v_batch, v_token, threads;
} problem;

/* Of one batch element: keys and values, packed to [vector][head][feature], and their gradients; and of a pair, for LANES keys. */
typedef struct {
  vec *keys, *values, *grad_keys, *grad_values;
  vec *codes, *grad_codes, *mixed, *received, *grad_query, *weight_sums, *bias_sums;
} work;

static int64_t count_vectors(const problem *p) { return (p->keys + LANES - 1) / LANES; }

/* Scratch of a thread, or its size with a NULL arena. */
static int64_t lay_out(const problem *p, work *w, vec *arena) {
  const int64_t H = p->heads, E = p->value_dim, D = p->dim, V = count_vectors(p);
  vec **parts[] = {&w->keys, &w->values, &w->grad_keys, &w->grad_values, &w->codes, &w->grad_codes,
                   &w->mixed, &w->received, &w->grad_query, &w->weight_sums, &w->bias_sums};
  const int64_t sizes[] = {V * H * D, V * H * E, V * H * D, V * H * E, H, H, H * E, H * E, H * D, H * E * E, p->queries * H * V};
  int64_t used = 0;
  for (int i = 0; i < 11; i++) {
    *parts[i] = arena + used;
    used += sizes[i];
  }
  return used;
}

static void pack(vec *to, const float *from, int64_t token, int64_t keys, int64_t features) {
  float *numbers = (float *)to;
  memset(to, 0, (keys + LANES - 1) / LANES * features * sizeof(vec));
  for (int64_t k = 0; k < keys; k++)
    for (int64_t f = 0; f < features; f++) numbers[(k / LANES * features + f) * LANES + k % LANES] = from[k * token + f];
}

static void unpack(float *to, const vec *from, int64_t keys, int64_t features) {
  const float *numbers = (const float *)from;
  for (int64_t k = 0; k < keys; k++)
    for (int64_t f = 0; f < features; f++) to[k * features + f] = numbers[(k / LANES * features + f) * LANES + k % LANES];
}

INLINE vec positive(vec x) { return larger(splat(0), x); } /* NaN stays */
INLINE vec where_positive(vec x, vec y) { return keep(y, ~(x <= splat(0))); }

/* Codes of a query and a vector of keys, zeros behind the last key; returns one over the root of their mean square. */
INLINE vec read_codes(const problem *p, work *w, const float *q, int64_t query, int64_t v, const int64_t D) {
  const int64_t H = p->heads, left = smaller(LANES, p->keys - v * LANES);
  const float scale = 1 / sqrtf((float)D);
  vec squares = splat(0);
  for (int64_t h = 0; h < H; h++) {
    vec score = splat(0);
    for (int64_t d = 0; d < D; d++) score += w->keys[(v * H + h) * D + d] * splat(q[h * D + d] * scale);
    if (p->bias) {
      const float *bias = p->bias + (h * p->queries + query) * p->keys + v * LANES;
      if (left == LANES) score += load(bias);
      else {
        float row[LANES] = {0};
        memcpy(row, bias, left * sizeof(float));
        score += load(row);
      }
    }
    w->codes[h] = score;
    squares += score * score;
  }
  vec inverse = squares / splat(H) + splat(EPSILON);
  for (int i = 0; i < LANES; i++) inverse[i] = i < left ? 1 / sqrtf(inverse[i]) : 0;
  for (int64_t h = 0; h < H; h++) w->codes[h] *= inverse;
  return inverse;
}

/* The network of a query and a vector of keys: x, y before its relu, and W[h] x for every head. */
INLINE void run_network(const problem *p, work *w, int64_t v, vec *x, vec *y, const int64_t E) {
  const int64_t H = p->heads;
  for (int64_t e = 0; e < E; e++) x[e] = y[e] = splat(0);
  for (int64_t h = 0; h < H; h++)
    for (int64_t e = 0; e < E; e++) x[e] += w->codes[h] * w->values[(v * H + h) * E + e];
  for (int64_t e = 0; e < E; e++) x[e] = positive(x[e]);
  for (int64_t h = 0; h < H; h++)
    for (int64_t f = 0; f < E; f++) {
      const float *row = p->weight + (h * E + f) * E;
      vec mixed = splat(0);
      for (int64_t e = 0; e < E; e++) mixed += splat(row[e]) * x[e];
      w->mixed[h * E + f] = mixed;
      y[f] += w->codes[h] * mixed;
    }
}

INLINE void forward_element(const problem *p, work *w, int64_t b, const int64_t D, const int64_t E) {
  const int64_t H = p->heads, V = count_vectors(p);
  vec x[MOST_VALUES], y[MOST_VALUES];
  pack(w->keys, p->k + b * p->k_batch, p->k_token, p->keys, H * D);
  pack(w->values, p->v + b * p->v_batch, p->v_token, p->keys, H * E);
  for (int64_t query = 0; query < p->queries; query++) {
    for (int64_t i = 0; i < H * E; i++) w->received[i] = splat(0);
    for (int64_t v = 0; v < V; v++) {
      read_codes(p, w, p->q + b * p->q_batch + query * p->q_token, query, v, D);
      run_network(p, w, v, x, y, E);
      for (int64_t h = 0; h < H; h++)
        for (int64_t f = 0; f < E; f++) w->received[h * E + f] += w->codes[h] * positive(y[f]);
    }
    for (int64_t i = 0; i < H * E; i++) p->out[(b * p->queries + query) * H * E + i] = sum_of(w->received[i]);
  }
}

/* Gradients of a query and a vector of keys; g: of what the heads of this query received. */
INLINE void backward_pair(const problem *p, work *w, const float *q, const float *g, int64_t query, int64_t v, const int64_t D,
                          const int64_t E) {
  const int64_t H = p->heads;
  const float scale = 1 / sqrtf((float)D);
  vec x[MOST_VALUES], y[MOST_VALUES], t[MOST_VALUES], r[MOST_VALUES], common = splat(0);
  const vec inverse = read_codes(p, w, q, query, v, D);
  run_network(p, w, v, x, y, E);
  for (int64_t f = 0; f < E; f++) t[f] = r[f] = splat(0);
  for (int64_t h = 0; h < H; h++)
    for (int64_t f = 0; f < E; f++) t[f] += w->codes[h] * splat(g[h * E + f]);
  for (int64_t f = 0; f < E; f++) t[f] = where_positive(y[f], t[f]), y[f] = positive(y[f]);
  for (int64_t h = 0; h < H; h++) {
    vec grad = splat(0);
    for (int64_t f = 0; f < E; f++) {
      const vec weighted = w->codes[h] * t[f];
      const float *row = p->weight + (h * E + f) * E;
      grad += splat(g[h * E + f]) * y[f] + t[f] * w->mixed[h * E + f];
      for (int64_t e = 0; e < E; e++) {
        r[e] += weighted * splat(row[e]);
        w->weight_sums[(h * E + f) * E + e] += weighted * x[e];
      }
    }
    w->grad_codes[h] = grad;
  }
  for (int64_t e = 0; e < E; e++) r[e] = where_positive(x[e], r[e]);
  for (int64_t h = 0; h < H; h++) {
    vec grad = w->grad_codes[h];
    for (int64_t e = 0; e < E; e++) {
      grad += r[e] * w->values[(v * H + h) * E + e];
      w->grad_values[(v * H + h) * E + e] += w->codes[h] * r[e];
    }
    w->grad_codes[h] = grad;
    common += grad * w->codes[h];
  }
  common /= splat(H);
  for (int64_t h = 0; h < H; h++) {
    const vec grad = inverse * (w->grad_codes[h] - w->codes[h] * common), scaled = grad * splat(scale);
    if (p->grad_bias) w->bias_sums[(query * H + h) * count_vectors(p) + v] += grad;
    for (int64_t d = 0; d < D; d++) {
      w->grad_query[h * D + d] += scaled * w->keys[(v * H + h) * D + d];
      w->grad_keys[(v * H + h) * D + d] += scaled * splat(q[h * D + d]);
    }
  }
}

INLINE void backward_element(const problem *p, work *w, int64_t b, const int64_t D, const int64_t E) {
  const int64_t H = p->heads, V = count_vectors(p);
  pack(w->keys, p->k + b * p->k_batch, p->k_token, p->keys, H * D);
  pack(w->values, p->v + b * p->v_batch, p->v_token, p->keys, H * E);
  memset(w->grad_keys, 0, V * H * D * sizeof(vec));
  memset(w->grad_values, 0, V * H * E * sizeof(vec));
  for (int64_t query = 0; query < p->queries; query++) {
    const int64_t row = b * p->queries + query;
    for (int64_t i = 0; i < H * D; i++) w->grad_query[i] = splat(0);
    for (int64_t v = 0; v < V; v++)
      backward_pair(p, w, p->q + b * p->q_batch + query * p->q_token, p->grad_out + row * H * E, query, v, D, E);
    for (int64_t i = 0; i < H * D; i++) p->grad_q[row * H * D + i] = sum_of(w->grad_query[i]);
  }
  unpack(p->grad_k + b * p->keys * H * D, w->grad_keys, p->keys, H * D);
  unpack(p->grad_v + b * p->keys * H * E, w->grad_values, p->keys, H * E);
}

static void run_element(const problem *p, work *w, int64_t b, int is_backward) {
  const int64_t D = p->dim, E = p->value_dim;
  if (is_backward) {
    if (D == 4 && E == 4) backward_element(p, w, b, 4, 4);
    else if (D == 2 && E == 2) backward_element(p, w, b, 2, 2);
    else backward_element(p, w, b, D, E);
  } else if (D == 4 && E == 4) forward_element(p, w, b, 4, 4);
  else if (D == 2 && E == 2) forward_element(p, w, b, 2, 2);
  else forward_element(p, w, b, D, E);
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_deep_forward(const problem *given) {
  const problem p = *given;
  int failed = 0;
#pragma omp parallel num_threads(smaller(p.threads, p.batch)) reduction(| : failed)
  {
    work w;
    vec *memory = aligned_alloc(64, lay_out(&p, &w, NULL) * sizeof(vec) / 64 * 64 + 64);
    failed |= !memory;
    lay_out(&p, &w, memory);
#pragma omp for schedule(dynamic)
    for (int64_t b = 0; b < p.batch; b++)
      if (memory) run_element(&p, &w, b, 0);
    free(memory);
  }
  return failed;
}

static void write_sums(const problem *p, const work *w, float *to) {
  const int64_t H = p->heads, E = p->value_dim, V = count_vectors(p);
  for (int64_t i = 0; i < H * E * E; i++) to[i] = sum_of(w->weight_sums[i]);
  to += H * E * E;
  for (int64_t query = 0; p->grad_bias && query < p->queries; query++)
    for (int64_t h = 0; h < H; h++)
      memcpy(to + (h * p->queries + query) * p->keys, w->bias_sums + (query * H + h) * V, p->keys * sizeof(float));
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_deep_backward(const problem *given) {
  const problem p = *given;
  const int64_t H = p.heads, E = p.value_dim, weights = H * E * E, pairs = p.grad_bias ? H * p.queries * p.keys : 0;
  const int64_t parts = smaller(MOST_PARTS, p.batch);
  float *sums = malloc(parts * (weights + pairs) * sizeof(float));
  int failed = !sums;
#pragma omp parallel num_threads(smaller(p.threads, parts)) reduction(| : failed) if (!failed)
  {
    work w;
    vec *memory = aligned_alloc(64, lay_out(&p, &w, NULL) * sizeof(vec) / 64 * 64 + 64);
    failed |= !memory;
    lay_out(&p, &w, memory);
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < parts; part++) {
      if (!memory || !sums) continue;
      memset(w.weight_sums, 0, weights * sizeof(vec));
      memset(w.bias_sums, 0, p.queries * H * count_vectors(&p) * sizeof(vec));
      for (int64_t b = part * p.batch / parts; b < (part + 1) * p.batch / parts; b++) run_element(&p, &w, b, 1);
      write_sums(&p, &w, sums + part * (weights + pairs));
    }
    free(memory);
  }
  for (int64_t part = 0; part < parts && !failed; part++) {
    const float *from = sums + part * (weights + pairs);
    for (int64_t i = 0; i < weights; i++) p.grad_weight[i] = (part ? p.grad_weight[i] : 0) + from[i];
    for (int64_t i = 0; i < pairs; i++) p.grad_bias[i] = (part ? p.grad_bias[i] : 0) + from[weights + i];
  }
  free(sums);
  return failed;
}
