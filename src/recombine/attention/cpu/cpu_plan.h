/* What the caller gives, what follows from it, and the scratch space of a thread: see cpu.c. */
#ifndef RECOMBINE_CPU_PLAN_H
#define RECOMBINE_CPU_PLAN_H

#include "cpu_normalise.h"
#include "cpu_tensor.h"
#include "cpu_tile.h"

/* ---------------------------------------------------------------- what the caller gives: mirrored in cpu.py */

typedef struct {
  float *data;
  int64_t batch, head, query, key; /* strides in elements; batch stride 0: shared by the batch */
} pair_tensor;

typedef struct {
  const uint8_t *data;             /* 1 = may attend; NULL if absent */
  int64_t batch, head, query, key; /* strides; 0 where shared */
} pair_mask;

enum { DROP_NOTHING, DROP_PAIRS, DROP_ELEMENTS };

typedef struct {
  tensor q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  pair_tensor bias, grad_bias;
  pair_mask mask;
  float *row_shift, *row_scale; /* (batch, query, head): statistics of the softmax */
  int64_t batch, queries, keys, heads, dim, value_dim;
  int64_t softmax, rms, hyper, relu, causal, bf16, threads;
  int64_t dropout, dropout_threshold; /* codes whose 16 bits are below the threshold are dropped */
  uint64_t dropout_key;
  double dropout_scale; /* of the codes that are kept */
} problem;

/* ---------------------------------------------------------------- what follows from it */

typedef struct {
  problem p;
  int64_t vectors, block, blocks; /* vectors of keys; at most `block` of them in a tile */
  int64_t group;                  /* tiles of queries that meet a block of keys while it is in the cache, forward */
  int64_t heads_padded, row_stride;
  float scale;                    /* of the scores */
  const float *bias;
  int64_t bias_batch, bias_head, bias_query;
  float *bias_copy;
  int mask_per_head;
  int drop_early, drop_late; /* as a mask of the scores, or after the normalisation */
  int rms_apart;             /* normalise over heads before the value network, not within it */
  float factor;              /* of the output: dropout scales every code, and a hypernetwork uses each code twice */
  ivec rms;  /* all ones, or zeros: no normalisation over heads */
  vec floor; /* of the hidden units: zeros, or minus infinity: no relu */
  const products *of_keys, *of_values;
  int64_t *value_order; /* where each feature of the values goes in a packed vector */
} plan;

/* Keys, values and their gradients, packed, of one batch element. */
typedef struct {
  vec *keys, *values, *grad_keys, *grad_values;
} packed_element;

/* What is kept of a few queries while they meet one block of keys after another. */
typedef struct {
  float *q_rows, *out_rows, *row_shift, *row_scale;
} row_set;

/* Scratch of one thread. */
typedef struct {
  packed_element e;
  row_set group[TILE_GROUP];
  vec *codes, *gradient, *dropped, *hidden, *inverse;
  ivec *mask, *kept; /* per pair of a tile, or per pair and head, laid out as the codes are */
  float *q_rows, *g_rows, *g_chunks, *out_rows, *row_shift, *row_scale, *factor, *dots, *scratch;
  void *memory;
} work;

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
  size_t keys = (l->vectors * p->heads + LANES) * p->dim * sizeof(vec);
  size_t values = (l->vectors * p->heads + LANES) * p->value_dim * sizeof(vec);
  e->keys = take(arena, used, keys);
  e->values = take(arena, used, values);
  if (!backward) return;
  e->grad_keys = take(arena, used, keys);
  e->grad_values = take(arena, used, values);
}

static void choose_rows(work *w, int64_t i) {
  const row_set *rows = &w->group[i];
  w->q_rows = rows->q_rows, w->out_rows = rows->out_rows, w->row_shift = rows->row_shift, w->row_scale = rows->row_scale;
}

static size_t lay_out_work(const plan *l, work *w, char *arena, int element, int backward) {
  const problem *p = &l->p;
  const int64_t HP = l->heads_padded;
  size_t used = 0, pairs = l->block * TILE_QUERIES, statistics = TILE_QUERIES * ROW_STRIDE * sizeof(float);
  size_t codes = (l->block * TILE_STRIDE + LANES) * sizeof(vec); /* heads past the end are read, and ignored */
  size_t width = p->heads * (p->dim > p->value_dim ? p->dim : p->value_dim), rows = TILE_QUERIES * width * sizeof(float);
  if (element) lay_out_element(l, &w->e, arena, &used, backward);
  w->codes = take(arena, &used, codes);
  w->gradient = take(arena, &used, backward ? codes : 0);
  w->hidden = take(arena, &used, (pairs * CHUNK > Z_VECTORS ? pairs * CHUNK : Z_VECTORS) * sizeof(vec));
  w->inverse = take(arena, &used, pairs * sizeof(vec));
  w->mask = take(arena, &used, l->mask_per_head ? codes : pairs * sizeof(ivec));
  w->kept = take(arena, &used, l->drop_late ? codes : 0);
  w->dropped = take(arena, &used, l->drop_late && backward ? codes : 0);
  w->g_rows = take(arena, &used, rows);
  w->g_chunks = !p->hyper || ONE_CHUNK(p->value_dim) ? w->g_rows : take(arena, &used, rows);
  for (int64_t i = 0; i < (backward ? 1 : l->group); i++) {
    w->group[i].q_rows = take(arena, &used, rows);
    w->group[i].out_rows = take(arena, &used, rows);
    w->group[i].row_shift = take(arena, &used, statistics);
    w->group[i].row_scale = take(arena, &used, statistics);
  }
  choose_rows(w, 0);
  w->factor = take(arena, &used, statistics);
  w->dots = take(arena, &used, statistics);
  w->scratch = take(arena, &used, (LANES + TILE_QUERIES) * (width + LANES) * sizeof(float));
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
  pack(e->keys + v * keys, &p->k, b, v * LANES, p->keys, p->heads, p->dim, p->bf16, NULL, w->scratch);
  pack(e->values + v * values, &p->v, b, v * LANES, p->keys, p->heads, p->value_dim, p->bf16, l->value_order, w->scratch);
  if (!backward) return;
  memset(e->grad_keys + v * keys, 0, keys * sizeof(vec));
  memset(e->grad_values + v * values, 0, values * sizeof(vec));
}

static void unpack_vector(const plan *l, work *w, const packed_element *e, int64_t b, int64_t v) {
  const problem *p = &l->p;
  unpack(&p->grad_k, b, v * LANES, p->keys, e->grad_keys + v * p->heads * p->dim, p->heads, p->dim, p->bf16, NULL,
         w->scratch);
  unpack(&p->grad_v, b, v * LANES, p->keys, e->grad_values + v * p->heads * p->value_dim, p->heads, p->value_dim, p->bf16,
         l->value_order, w->scratch);
}

static void scale_all(float *x, int64_t n, float scale) {
  if (scale != 1)
    for (int64_t i = 0; i < n; i++) x[i] *= scale;
}

static void read_rows(const tensor *t, float *rows, int64_t b, int64_t q0, int64_t nq, int64_t heads, int64_t dim,
                      int64_t bf16, float scale) {
  for (int64_t q = 0; q < nq; q++) read_row(rows + q * heads * dim, t, b, q0 + q, heads, dim, bf16);
  scale_all(rows, nq * heads * dim, scale);
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

/* A hypernetwork handles a chunk of features for all heads at once: its values are packed as [chunk][head][feature of it]. */
static int open_value_order(plan *l) {
  const int64_t H = l->p.heads, E = l->p.value_dim;
  if (!l->p.hyper || ONE_CHUNK(E)) return 1;
  if (!(l->value_order = allocate(H * E * sizeof(int64_t)))) return 0;
  FOR_CHUNKS(E, f, {
    for (int64_t h = 0; h < H; h++)
      for (int64_t c = 0; c < C; c++) l->value_order[h * E + f + c] = f * H + h * C + c;
  })
  return 1;
}

static int open_plan(plan *l, const problem *p, int64_t most_vectors, int backward) {
  memset(l, 0, sizeof *l);
  l->p = *p;
  l->scale = 1 / sqrtf((float)p->dim);
  l->vectors = at_most_one_less(p->keys, LANES);
  l->heads_padded = at_most_one_less(p->heads, 8) * 8;
  l->row_stride = at_most_one_less(l->heads_padded, LANES) * LANES;
  /* keys, values and their gradients of a block should stay in a second-level cache */
  int64_t bytes = (1 + backward) * p->heads * (p->dim + p->value_dim) * (int64_t)sizeof(vec), fit = CACHE_BYTES / bytes;
  int64_t most = smaller(most_vectors, fit < 1 ? 1 : fit);
  l->blocks = at_most_one_less(l->vectors, most);
  l->block = at_most_one_less(l->vectors, l->blocks);
  l->blocks = at_most_one_less(l->vectors, l->block);
  l->group = l->blocks == 1 ? 1 : TILE_GROUP;
  l->of_keys = choose_products(p->heads, p->dim), l->of_values = choose_products(p->heads, p->value_dim);
  l->mask_per_head = p->mask.data && p->mask.head;
  l->drop_early = p->dropout == DROP_PAIRS && !p->softmax;
  l->drop_late = p->dropout && !l->drop_early;
  l->factor = p->dropout ? p->dropout_scale * (p->hyper ? p->dropout_scale : 1) : 1;
  l->rms_apart = p->rms && (!p->hyper || !l->of_values->once || l->drop_late);
  l->rms = (ivec){0} - (int32_t)(p->rms && !l->rms_apart), l->floor = splat(p->relu ? 0 : -INFINITY);
  return open_value_order(l) && open_bias(l);
}

static void close_plan(plan *l) {
  free(l->value_order);
  free(l->bias_copy);
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
#define TILE_GROUPS(l) at_most_one_less(TILES(l), (l)->group)
#define TILE(l, t, q0, nq) \
  const int64_t q0 = (t) * TILE_QUERIES, nq = smaller(TILE_QUERIES, (l)->p.queries - q0)

#endif
