/* The products and normalisations of one tile of queries and keys, and how tensors are read into it: see cpu.c. */
#ifndef RECOMBINE_CPU_TILE_H
#define RECOMBINE_CPU_TILE_H

#include "cpu_vector.h"

#ifndef TILE_QUERIES
#define TILE_QUERIES 8
#endif
  /* queries of a tile */
#ifndef TILE_PADDING
#define TILE_PADDING 4
#endif
#define BLOCK_VECTORS 8  /* most vectors of keys in a tile */
#define CHUNK 4          /* features handled in registers at once */
#define RMS_EPSILON 1e-6f

/* ---------------------------------------------------------------- tensors in float32 or bf16 */

typedef struct {
  void *data;                 /* NULL if absent */
  int64_t batch, token, head; /* strides in elements; the stride of a feature is 1 */
} tensor;

/* The same token of the next batch element will be wanted soon. */
INLINE void prefetch_next(const tensor *t, int64_t at, int64_t width, int64_t bf16) {
  const char *next = (const char *)t->data + (at + t->batch) * (bf16 ? 2 : 4);
  for (int64_t i = 0; i < width * (bf16 ? 2 : 4); i += 64) __builtin_prefetch(next + i, 0, 2);
}

/* One token's heads and features as a contiguous row. */
static void read_row(float *row, const tensor *t, int64_t b, int64_t token, int64_t heads, int64_t dim, int64_t bf16) {
  int64_t at = b * t->batch + token * t->token;
  prefetch_next(t, at, heads * dim, bf16);
  if (t->head == dim) read_floats(row, t->data, at, heads * dim, bf16);
  else
    for (int64_t h = 0; h < heads; h++) read_floats(row + h * dim, t->data, at + h * t->head, dim, bf16);
}

static void write_row(const tensor *t, int64_t b, int64_t token, const float *row, int64_t heads, int64_t dim, int64_t bf16) {
  int64_t at = b * t->batch + token * t->token;
  if (t->head == dim) write_floats(t->data, at, row, heads * dim, bf16);
  else
    for (int64_t h = 0; h < heads; h++) write_floats(t->data, at + h * t->head, row + h * dim, dim, bf16);
}

/* LANES tokens, from the given one, to [head][feature] vectors; tokens past the end are zeros. */
static void pack(vec *packed, const tensor *t, int64_t b, int64_t token, int64_t tokens, int64_t heads, int64_t dim,
                 int64_t bf16, float *scratch) {
  int64_t width = heads * dim, padded = (width + LANES - 1) / LANES * LANES;
  const float *rows[LANES];
  for (int64_t i = 0; i < LANES; i++) {
    rows[i] = scratch + i * padded;
    if (token + i >= tokens) memset(scratch + i * padded, 0, width * sizeof(float));
    else if (!bf16 && t->head == dim) {
      rows[i] = (const float *)t->data + b * t->batch + (token + i) * t->token;
      prefetch_next(t, b * t->batch + (token + i) * t->token, width, 0);
    }
    else read_row(scratch + i * padded, t, b, token + i, heads, dim, bf16);
  }
  int64_t f = 0;
  for (; f + LANES <= width; f += LANES) {
    vec x[LANES];
    UNROLL for (int i = 0; i < LANES; i++) x[i] = load(rows[i] + f);
    transpose(x);
    UNROLL for (int i = 0; i < LANES; i++) packed[f + i] = x[i];
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) packed[f][i] = rows[i][f];
}

static void unpack(const tensor *t, int64_t b, int64_t token, int64_t tokens, const vec *packed, int64_t heads, int64_t dim,
                   int64_t bf16, float *scratch) {
  int64_t width = heads * dim, padded = (width + LANES - 1) / LANES * LANES, f = 0;
  const int direct = !bf16 && t->head == dim && token + LANES <= tokens;
  float *rows[LANES];
  for (int64_t i = 0; i < LANES; i++)
    rows[i] = direct ? (float *)t->data + b * t->batch + (token + i) * t->token : scratch + i * padded;
  for (; f + LANES <= width; f += LANES) {
    vec x[LANES];
    UNROLL for (int i = 0; i < LANES; i++) x[i] = packed[f + i];
    transpose(x);
    UNROLL for (int i = 0; i < LANES; i++) store(rows[i] + f, x[i]);
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) rows[i][f] = packed[f][i];
  for (int64_t i = 0; i < LANES && token + i < tokens && !direct; i++) write_row(t, b, token + i, rows[i], heads, dim, bf16);
}

/* ---------------------------------------------------------------- the products of a tile

A tile holds, for `nv` vectors of keys and `nq` queries, one vec per head: s[AT(v, q) + h].
Rows of queries are [q][head][feature] floats; packed keys are [v][head][feature] vecs. What is written in capitals is
constant once inlined (H and F in the tables of common sizes at the end), so that the small loops unroll and the sums stay in
registers. */

#define TILE_STRIDE (TILE_QUERIES * HP + TILE_PADDING) /* vecs from one vector of keys to the next */
#define AT(v, q) ((v) * TILE_STRIDE + (q) * HP)
/* Features are handled in chunks of C = 4, then 2, then 1: CALL for each chunk from f on, or for each range of chunks. */
#define FOR_RANGES(F, CALL)                                                              \
  {                                                                                      \
    { enum { C = 4 }; const int64_t begin = 0, end = (F) / 4 * 4; CALL; }                \
    { enum { C = 2 }; const int64_t begin = (F) / 4 * 4, end = (F) / 2 * 2; CALL; }      \
    { enum { C = 1 }; const int64_t begin = (F) / 2 * 2, end = (F); CALL; }              \
  }
#define FOR_CHUNKS(F, f, CALL) FOR_RANGES(F, for (int64_t f = begin; f < end; f += C) CALL)

/* s = rows . keys (+ bias), for Q queries and N vectors of one head */
INLINE void score_few(const int Q, const int N, int64_t H, int64_t F, int64_t HP, const vec *keys, const float *rows,
                      const float *bias, int64_t bias_query, vec *s) {
  vec sum[4][2];
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) sum[i][j] = bias ? load(bias + i * bias_query + j * LANES) : splat(0);
  for (int64_t f = 0; f < F; f++) {
    vec key[2];
    UNROLL for (int j = 0; j < N; j++) {
      key[j] = keys[j * H * F + f];
      IN_REGISTER(key[j]);
    }
    UNROLL for (int i = 0; i < Q; i++)
      UNROLL for (int j = 0; j < N; j++) sum[i][j] += key[j] * rows[i * H * F + f];
  }
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) s[AT(j, i)] = sum[i][j];
}

INLINE void score_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t nv, const vec *keys, const float *rows,
                         const float *bias, int64_t bias_head, int64_t bias_query, vec *s) {
  for (int64_t h = 0; h < H; h++) {
    int64_t q = 0;
#define SCORE(Q, N)                                                                           \
  score_few(Q, N, H, F, HP, keys + (v * H + h) * F, rows + (q * H + h) * F,                   \
            bias ? bias + h * bias_head + q * bias_query + v * LANES : 0, bias_query, s + AT(v, q) + h)
    for (; q + 4 <= nq; q += 4) {
      int64_t v = 0;
      for (; v + 2 <= nv; v += 2) SCORE(4, 2);
      if (v < nv) SCORE(4, 1);
    }
    for (; q < nq; q++)
      for (int64_t v = 0; v < nv; v++) SCORE(1, 1);
  }
}

/* Add the sums of LANES / C heads and C features to a row; heads past the last one are dropped. */
INLINE void add_sums(const int C, int64_t H, int64_t F, int64_t h, int64_t f, const vec *sums, float *row) {
  vec total = sum_lanes(sums);
  if (C == F && h + LANES / C <= H) store(row + h * F, load(row + h * F) + total);
  else
    for (int i = 0; i < LANES; i++)
      if (h + i / C < H) row[(h + i / C) * F + f + i % C] += total[i];
}

/* rows[q][h][f] += sum over keys of s[h] packed[h][f]: the linear value network, and the gradient of queries */
INLINE void contract_range(const int C, int64_t H, int64_t F, int64_t HP, int64_t begin, int64_t end, int64_t nq, int64_t nv,
                           const vec *s, const vec *packed, float *rows) {
  for (int64_t h = 0; h < H; h += LANES / C)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t f = begin; f < end; f += C) {
        vec sum[LANES] = {0};
        for (int64_t v = 0; v < nv; v++)
          UNROLL for (int i = 0; i < LANES / C; i++) {
            vec sh = s[AT(v, q) + h + i];
            IN_REGISTER(sh);
            UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * packed[(v * H + h + i) * F + f + c];
          }
        add_sums(C, H, F, h, f, sum, rows + q * H * F);
      }
}

/* packed[v][h][f] += sum over queries of s[h] rows[q][h][f]: gradients of keys, and of values of the linear network */
INLINE void spread_few(const int C, const int N, int64_t H, int64_t F, int64_t HP, int64_t nq, const vec *s, const float *rows,
                       vec *packed) {
  vec sum[2][4];
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) sum[j][c] = packed[j * H * F + c];
  for (int64_t q = 0; q < nq; q++) {
    vec sh[2];
    UNROLL for (int j = 0; j < N; j++) {
      sh[j] = s[AT(j, q)];
      IN_REGISTER(sh[j]);
    }
    UNROLL for (int c = 0; c < C; c++)
      UNROLL for (int j = 0; j < N; j++) sum[j][c] += sh[j] * rows[q * H * F + c];
  }
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) packed[j * H * F + c] = sum[j][c];
}

INLINE void spread_range(const int C, int64_t H, int64_t F, int64_t HP, int64_t begin, int64_t end, int64_t nq, int64_t nv,
                         const vec *s, const float *rows, vec *packed) {
  for (int64_t h = 0; h < H; h++) {
    int64_t v = 0;
#define SPREAD(N) spread_few(C, N, H, F, HP, nq, s + AT(v, 0) + h, rows + h * F + f, packed + (v * H + h) * F + f)
    for (; v + 2 <= nv; v += 2)
      for (int64_t f = begin; f < end; f += C) SPREAD(2);
    if (v < nv)
      for (int64_t f = begin; f < end; f += C) SPREAD(1);
  }
}

/* ---------------------------------------------------------------- hypernetwork value networks

If a head's features are one chunk (ONCE), rms_head costs hardly anything on the way: `rms` is a mask, of zeros for r = 1.
Otherwise `s` must be normalised before, and rms_backward follows. Without relu, `floor` is minus infinity instead of 0: no
inner loop has a branch. `f` is the first of C features. */

INLINE vec inverse_mean_square(vec sum_of_squares, int64_t H, ivec rms) {
  return choose(rms, 1.0f / (sum_of_squares * (1.0f / H) + RMS_EPSILON), splat(1));
}

/* z = r^2 relu(sum_h s v) for Q queries and one vector of keys */
INLINE void hidden_few(const int C, const int Q, const int ONCE, int64_t H, int64_t F, int64_t HP, ivec rms, vec floor,
                       const vec *s, const vec *values, vec *z) {
  vec x[2][4] = {0}, squares[2] = {0};
  for (int64_t h = 0; h < H; h++) {
    vec sh[2];
    UNROLL for (int i = 0; i < Q; i++) {
      sh[i] = s[i * HP + h];
      IN_REGISTER(sh[i]);
      if (ONCE) squares[i] += sh[i] * sh[i];
    }
    UNROLL for (int c = 0; c < C; c++) {
      vec value = values[h * F + c];
      IN_REGISTER(value);
      UNROLL for (int i = 0; i < Q; i++) x[i][c] += sh[i] * value;
    }
  }
  UNROLL for (int i = 0; i < Q; i++) {
    vec r2 = ONCE ? inverse_mean_square(squares[i], H, rms) : splat(1);
    UNROLL for (int c = 0; c < C; c++) z[i * CHUNK + c] = larger(floor, x[i][c]) * r2;
  }
}

INLINE void hyper_forward_inline(const int C, const int ONCE, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq,
                                 int64_t nv, ivec rms, vec floor, const vec *s, const vec *values, vec *z, float *rows) {
  for (int64_t v = 0; v < nv; v++) {
    int64_t q = 0;
#define HIDDEN(Q) \
  hidden_few(C, Q, ONCE, H, F, HP, rms, floor, s + AT(v, q), values + v * H * F + f, z + (v * TILE_QUERIES + q) * CHUNK)
    for (; q + 2 <= nq; q += 2) HIDDEN(2);
    if (q < nq) HIDDEN(1);
  }
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += LANES / C) {
      vec sum[LANES] = {0};
      for (int64_t v = 0; v < nv; v++) {
        vec zc[4];
        UNROLL for (int c = 0; c < C; c++) {
          zc[c] = z[(v * TILE_QUERIES + q) * CHUNK + c];
          IN_REGISTER(zc[c]);
        }
        UNROLL for (int i = 0; i < LANES / C; i++) {
          vec sh = s[AT(v, q) + h + i];
          IN_REGISTER(sh);
          UNROLL for (int c = 0; c < C; c++) sum[i * C + c] += sh * zc[c];
        }
      }
      add_sums(C, H, F, h, f, sum, rows + q * H * F);
    }
}

/* The gradient of the scores (into ds), and t of the header of cpu.c (for the gradient of values). */
INLINE void hyper_backward_inline(const int C, const int ONCE, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq,
                                  int64_t nv, ivec rms, vec floor, const vec *tile, const vec *values, const float *grads,
                                  vec *t, vec *gradient) {
  const int first = ONCE || f == 0;
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      const vec *s = tile + AT(v, q), *value = values + v * H * F + f;
      const float *g = grads + q * H * F + f;
      vec *ds = gradient + AT(v, q), *to = t + (v * TILE_QUERIES + q) * CHUNK;
      vec x[4] = {0}, u[4] = {0}, squares = {0}, shrink = {0};
      for (int64_t h = 0; h < H; h++) {
        vec sh = s[h];
        IN_REGISTER(sh);
        UNROLL for (int c = 0; c < C; c++) {
          x[c] += sh * value[h * F + c];
          u[c] += sh * g[h * F + c];
        }
        if (ONCE) squares += sh * sh;
      }
      UNROLL for (int c = 0; c < C; c++) {
        ivec m = ~(x[c] <= floor); /* NaN passes, so that it is seen */
        x[c] = keep(x[c], m);
        u[c] = keep(u[c], m);
        if (ONCE) shrink += x[c] * u[c];
      }
      if (ONCE) {
        vec r2 = inverse_mean_square(squares, H, rms);
        UNROLL for (int c = 0; c < C; c++) x[c] *= r2, u[c] *= r2;
        shrink = keep(shrink * r2 * r2 * (-2.0f / H), rms);
      }
      UNROLL for (int c = 0; c < C; c++) to[c] = u[c];
      for (int64_t h = 0; h < H; h++) {
        vec sum = first ? splat(0) : ds[h], other = ONCE ? s[h] * shrink : splat(0);
        UNROLL for (int c = 0; c < C; c++) {
          sum += x[c] * g[h * F + c];
          other += u[c] * value[h * F + c];
        }
        ds[h] = sum + other;
      }
    }
}

/* packed[v][h][f] += sum over queries of s[h] t[f]: the gradient of values */
INLINE void spread_hidden_inline(const int C, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq, int64_t nv,
                                 const vec *s, const vec *t, vec *packed) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t h = 0; h < H; h += 2) {
      const int pair = h + 1 < H;
      vec *to = packed + (v * H + h) * F + f, *also = pair ? to + F : to;
      vec sum[2][4];
      UNROLL for (int c = 0; c < C; c++) {
        sum[0][c] = to[c];
        sum[1][c] = also[c];
      }
      for (int64_t q = 0; q < nq; q++) {
        vec s0 = s[AT(v, q) + h], s1 = s[AT(v, q) + h + 1];
        IN_REGISTER(s0);
        IN_REGISTER(s1);
        UNROLL for (int c = 0; c < C; c++) {
          vec tc = t[(v * TILE_QUERIES + q) * CHUNK + c];
          IN_REGISTER(tc);
          sum[0][c] += s0 * tc;
          sum[1][c] += s1 * tc;
        }
      }
      UNROLL for (int c = 0; c < C; c++) {
        if (pair) also[c] = sum[1][c];
        to[c] = sum[0][c];
      }
    }
}

/* rows[q][h][f] *= factor[q][h] */
INLINE void scale_rows_inline(int64_t H, int64_t F, int64_t HP, int64_t nq, float *rows, const float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h++)
      for (int64_t f = 0; f < F; f++) rows[(q * H + h) * F + f] *= factor[q * HP + h];
}

/* ---------------------------------------------------------------- tables of the products, for common sizes and for any */

typedef struct {
  int64_t H, F, HP, nq, nv; /* heads, features of a head, heads padded to whole vectors, queries, vectors of keys */
} tile;

typedef struct {
  void (*score)(const tile *, const vec *keys, const float *rows, const float *bias, int64_t bias_head, int64_t bias_query,
                vec *s);
  void (*contract)(const tile *, const vec *s, const vec *packed, float *rows);
  void (*spread)(const tile *, const vec *s, const float *rows, vec *packed);
  void (*scale_rows)(const tile *, float *rows, const float *factor);
  void (*hyper_forward)(const tile *, ivec rms, vec floor, const vec *s, const vec *values, vec *z, float *rows);
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
  static void hyper_backward_##name(const tile *k, ivec rms, vec floor, const vec *s, const vec *values,                   \
                                    const float *grads, vec *t, vec *gradient, vec *grad_values) {                         \
    FOR_CHUNKS(F, f, {                                                                                                     \
      hyper_backward_inline(C, ONCE, H, F, HP, f, k->nq, k->nv, rms, floor, s, values, grads, t, gradient);                \
      if (grad_values) spread_hidden_inline(C, H, F, HP, f, k->nq, k->nv, s, t, grad_values);                              \
    })                                                                                                                     \
  }                                                                                                                        \
  static const products name##_products = {score_##name,         contract_##name,       spread_##name, scale_rows_##name, \
                                           hyper_forward_##name, hyper_backward_##name, ONCE};
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

/* ---------------------------------------------------------------- normalisation of a tile */

/* Exponentiate a tile against its running row maximum, kept as a power of two: `row_shift` = maximum * log2(e).
   `factor` corrects what was summed with the earlier maximum. */
INLINE void softmax_online(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, float *row_shift, float *row_sum,
                           float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += LANES) {
      vec part[LANES] = {0}, before = load(row_shift + q * HP + h);
      UNROLL for (int i = 0; i < LANES; i++) {
        part[i] = s[AT(0, q) + h + i];
        for (int64_t v = 1; v < nv; v++) part[i] = larger(s[AT(v, q) + h + i], part[i]);
      }
      vec shift = larger(max_lanes(part) * LOG2_E, before);
      store(row_shift + q * HP + h, shift);
      shift = choose(shift == splat(-INFINITY), splat(0), shift); /* no key so far: any finite shift will do */
      float shifts[LANES];
      store(shifts, shift);
      for (int i = 0; i < LANES && h + i < H; i++) {
        vec sum = splat(0);
        for (int64_t v = 0; v < nv; v++) {
          vec *a = s + AT(v, q) + h + i;
          *a = exp2_of(*a * LOG2_E - shifts[i]);
          sum += *a;
        }
        part[i] = sum;
      }
      vec correct = exp2_of(before - shift);
      store(row_sum + q * HP + h, load(row_sum + q * HP + h) * correct + sum_lanes(part));
      store(factor + q * HP + h, correct);
    }
}

/* Codes of a tile from scores and the final statistics of their rows. */
INLINE void softmax_final(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const float *row_shift,
                          const float *row_scale) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) {
        vec *a = s + AT(v, q) + h;
        *a = exp2_of(*a * LOG2_E - row_shift[q * HP + h]) * row_scale[q * HP + h];
      }
}

INLINE void scale_codes(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const float *row_scale) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) s[AT(v, q) + h] *= row_scale[q * HP + h];
}

/* Divide by the root mean square over heads, and keep its inverse. */
INLINE void rms_over_heads(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, vec *inverse) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      vec *a = s + AT(v, q), square = {0}, r;
      for (int64_t h = 0; h < H; h++) square += a[h] * a[h];
      square = square * (1.0f / H) + RMS_EPSILON;
      for (int i = 0; i < LANES; i++) r[i] = 1.0f / sqrtf(square[i]);
      for (int64_t h = 0; h < H; h++) a[h] *= r;
      inverse[v * TILE_QUERIES + q] = r;
    }
}

INLINE void rms_backward(int64_t H, int64_t HP, int64_t nq, int64_t nv, const vec *codes, const vec *inverse, vec *ds) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      const vec *a = codes + AT(v, q), r = inverse[v * TILE_QUERIES + q];
      vec *d = ds + AT(v, q), mean = {0};
      for (int64_t h = 0; h < H; h++) mean += a[h] * d[h];
      mean *= 1.0f / H;
      for (int64_t h = 0; h < H; h++) d[h] = r * (d[h] - a[h] * mean);
    }
}

/* Undo rms_over_heads. */
INLINE void restore_codes(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, const vec *inverse) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) s[AT(v, q) + h] /= inverse[v * TILE_QUERIES + q];
}

/* dots[q][h] += sum over keys of codes * gradient */
INLINE void add_row_dots(int64_t HP, int64_t nq, int64_t nv, const vec *codes, const vec *gradient, float *dots) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < HP; h += LANES) {
      vec sum[LANES] = {0};
      for (int64_t v = 0; v < nv; v++)
        UNROLL for (int i = 0; i < LANES; i++) sum[i] += codes[AT(v, q) + h + i] * gradient[AT(v, q) + h + i];
      store(dots + q * HP + h, load(dots + q * HP + h) + sum_lanes(sum));
    }
}

INLINE void softmax_backward(int64_t H, int64_t HP, int64_t nq, int64_t nv, const vec *codes, const float *dots, vec *ds) {
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++)
      for (int64_t h = 0; h < H; h++) {
        int64_t at = AT(v, q) + h;
        ds[at] = codes[at] * (ds[at] - dots[q * HP + h]);
      }
}

#endif
