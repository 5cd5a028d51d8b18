/* Vectors of eight keys, tensors in float32 or bf16, and the products and normalisations of one tile: see cpu.c. */
#ifndef RECOMBINE_CPU_TILE_H
#define RECOMBINE_CPU_TILE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8
#define TILE_QUERIES 8   /* queries of a tile */
#define BLOCK_VECTORS 8  /* most vectors of keys in a tile */
#define CHUNK 4          /* features handled in registers at once */
#define RMS_EPSILON 1e-6f
#define LOG2_E 1.4426950408889634f

typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float loose_vec __attribute__((vector_size(32), aligned(4), may_alias)); /* a vec at any address */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* ---------------------------------------------------------------- vectors */

INLINE vec splat(float x) { return (vec){x, x, x, x, x, x, x, x}; }
INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec x) { *(loose_vec *)p = x; }
INLINE vec keep(vec x, ivec mask) { return (vec)((ivec)x & mask); }
INLINE vec choose(ivec mask, vec x, vec y) { return (vec)(((ivec)x & mask) | ((ivec)y & ~mask)); }
INLINE vec larger(vec x, vec y) { return choose(x > y, x, y); }
INLINE ivec alive(vec x) { return ~(x <= splat(0)); } /* where relu passes; NaN passes, so that it is seen */

/* Reduce eight vectors to one: lane i of the result is the sum (or maximum) over the lanes of x[i]. */
#define DEFINE_REDUCTION(name, COMBINE)                                                                       \
  INLINE vec name(const vec *x) {                                                                             \
    vec pair[4], quad[2];                                                                                     \
    UNROLL for (int i = 0; i < 4; i++) pair[i] = COMBINE(SHUFFLE(x[2 * i], x[2 * i + 1], 0, 2, 8, 10, 4, 6, 12, 14), \
                                                         SHUFFLE(x[2 * i], x[2 * i + 1], 1, 3, 9, 11, 5, 7, 13, 15)); \
    UNROLL for (int i = 0; i < 2; i++) quad[i] = COMBINE(SHUFFLE(pair[2 * i], pair[2 * i + 1], 0, 2, 8, 10, 4, 6, 12, 14), \
                                                         SHUFFLE(pair[2 * i], pair[2 * i + 1], 1, 3, 9, 11, 5, 7, 13, 15)); \
    return COMBINE(SHUFFLE(quad[0], quad[1], 0, 1, 2, 3, 8, 9, 10, 11),                                       \
                   SHUFFLE(quad[0], quad[1], 4, 5, 6, 7, 12, 13, 14, 15));                                    \
  }
#define ADD(x, y) ((x) + (y))
DEFINE_REDUCTION(sum_lanes, ADD)
DEFINE_REDUCTION(max_lanes, larger)

INLINE void transpose(vec *x) {
  vec a[8], b[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    b[i] = SHUFFLE(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 1] = SHUFFLE(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    b[i + 2] = SHUFFLE(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 3] = SHUFFLE(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    x[i] = SHUFFLE(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = SHUFFLE(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

/* 2^x for x <= 0, to about one unit in the last place; exactly 0 for x <= -127, NaN for NaN. x = n + f, |f| <= 1/2. */
INLINE vec exp2_below_zero(vec x) {
  x = choose(x < splat(-127), splat(-127), x);
  const vec magic = splat(12582912.0f + 127.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
  vec shifted = x + magic, f = x - (shifted - magic);
  vec p = splat(1.5345810970757157e-4f);
  p = p * f + splat(1.3399930903688073e-3f);
  p = p * f + splat(9.618489071726799e-3f);
  p = p * f + splat(5.550328642129898e-2f);
  p = p * f + splat(2.4022646248340607e-1f);
  p = p * f + splat(6.931471824645996e-1f);
  p = p * f + splat(1.0f);
  return p * (vec)((ivec)shifted << 23);
}

/* ---------------------------------------------------------------- tensors in float32 or bf16 */

typedef struct {
  void *data;                 /* NULL if absent */
  int64_t batch, token, head; /* strides in elements; the stride of a feature is 1 */
} tensor;

static void read_floats(float *to, const void *data, int64_t at, int64_t n, int64_t bf16) {
  if (!bf16) {
    memcpy(to, (const float *)data + at, n * sizeof(float));
    return;
  }
  const uint16_t *from = (const uint16_t *)data + at;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = (uint32_t)from[i] << 16;
    memcpy(to + i, &bits, 4);
  }
}

static void write_floats(void *data, int64_t at, const float *from, int64_t n, int64_t bf16) {
  if (!bf16) {
    memcpy((float *)data + at, from, n * sizeof(float));
    return;
  }
  uint16_t *to = (uint16_t *)data + at;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, from + i, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* to nearest, ties to even */
    to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

/* One token's heads and features as a contiguous row. */
static void read_row(float *row, const tensor *t, int64_t b, int64_t token, int64_t heads, int64_t dim, int64_t bf16) {
  int64_t at = b * t->batch + token * t->token;
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

/* Eight tokens, from the given one, to [head][feature] vectors; tokens past the end are zeros. */
static void pack(vec *packed, const tensor *t, int64_t b, int64_t token, int64_t tokens, int64_t heads, int64_t dim,
                 int64_t bf16, float *scratch) {
  int64_t width = heads * dim, padded = (width + 7) / 8 * 8;
  const float *rows[LANES];
  for (int64_t i = 0; i < LANES; i++) {
    rows[i] = scratch + i * padded;
    if (token + i >= tokens) memset(scratch + i * padded, 0, width * sizeof(float));
    else if (!bf16 && t->head == dim) rows[i] = (const float *)t->data + b * t->batch + (token + i) * t->token;
    else read_row(scratch + i * padded, t, b, token + i, heads, dim, bf16);
  }
  int64_t f = 0;
  for (; f + 8 <= width; f += 8) {
    vec x[8];
    UNROLL for (int i = 0; i < 8; i++) x[i] = load(rows[i] + f);
    transpose(x);
    UNROLL for (int i = 0; i < 8; i++) packed[f + i] = x[i];
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) packed[f][i] = rows[i][f];
}

static void unpack(const tensor *t, int64_t b, int64_t token, int64_t tokens, const vec *packed, int64_t heads, int64_t dim,
                   int64_t bf16, float *scratch) {
  int64_t width = heads * dim, padded = (width + 7) / 8 * 8, f = 0;
  for (; f + 8 <= width; f += 8) {
    vec x[8];
    UNROLL for (int i = 0; i < 8; i++) x[i] = packed[f + i];
    transpose(x);
    UNROLL for (int i = 0; i < 8; i++) store(scratch + i * padded + f, x[i]);
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) scratch[i * padded + f] = packed[f][i];
  for (int64_t i = 0; i < LANES && token + i < tokens; i++)
    write_row(t, b, token + i, scratch + i * padded, heads, dim, bf16);
}

/* ---------------------------------------------------------------- the products of a tile

A tile holds, for `nv` vectors of keys and `nq` queries, one vec per head: s[(v * TILE_QUERIES + q) * heads_padded + h].
Rows of queries are [q][head][feature] floats; packed keys are [v][head][feature] vecs. Counts written in capitals are
constants once inlined, so that the small loops unroll and the sums stay in registers. */

#define AT(v, q) (((v) * TILE_QUERIES + (q)) * HP)
#define FOR_CHUNKS(F, f, CALL)                                  \
  {                                                             \
    int64_t f = 0;                                              \
    for (; f + 4 <= (F); f += 4) { enum { C = 4 }; CALL; }      \
    if (f + 2 <= (F)) { enum { C = 2 }; CALL; f += 2; }         \
    if (f < (F)) { enum { C = 1 }; CALL; }                      \
  }

/* s = rows . keys (+ bias), for Q queries and N vectors of one head */
INLINE void score_few(const int Q, const int N, int64_t H, int64_t F, int64_t HP, const vec *keys, const float *rows,
                      const float *bias, int64_t bias_query, vec *s) {
  vec sum[4][2];
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) sum[i][j] = bias ? load(bias + i * bias_query + j * LANES) : splat(0);
  for (int64_t f = 0; f < F; f++) {
    vec key[2];
    UNROLL for (int j = 0; j < N; j++) key[j] = keys[j * H * F + f];
    UNROLL for (int i = 0; i < Q; i++)
      UNROLL for (int j = 0; j < N; j++) sum[i][j] += key[j] * rows[i * H * F + f];
  }
  UNROLL for (int i = 0; i < Q; i++)
    UNROLL for (int j = 0; j < N; j++) s[AT(j, i)] = sum[i][j];
}

INLINE void score(int64_t H, int64_t F, int64_t HP, int64_t nq, int64_t nv, const vec *keys, const float *rows,
                  const float *bias, int64_t bias_head, int64_t bias_query, vec *s) {
  for (int64_t h = 0; h < H; h++) {
    int64_t q = 0;
#define SCORE(Q, N)                                                                                                   \
  score_few(Q, N, H, F, HP, keys + (v * H + h) * F, rows + (q * H + h) * F,                                           \
            bias ? bias + h * bias_head + q * bias_query + v * LANES : 0, bias_query, s + AT(v, q) + h)
    for (; q + 4 <= nq; q += 4) {
      int64_t v = 0;
      for (; v + 2 <= nv; v += 2) SCORE(4, 2);
      if (v < nv) SCORE(4, 1);
    }
    for (; q < nq; q++) {
      int64_t v = 0;
      for (; v + 2 <= nv; v += 2) SCORE(1, 2);
      if (v < nv) SCORE(1, 1);
    }
  }
}

/* Add the eight sums of 8 / C heads and C features to a row; heads past the last one are dropped. */
INLINE void add_sums(const int C, int64_t H, int64_t F, int64_t h, int64_t f, const vec *sums, float *row) {
  vec total = sum_lanes(sums);
  if (C == F && h + 8 / C <= H) store(row + h * F, load(row + h * F) + total);
  else
    for (int i = 0; i < 8; i++)
      if (h + i / C < H) row[(h + i / C) * F + f + i % C] += total[i];
}

/* rows[q][h][f] += sum over keys of s[h] packed[h][f]: the linear value network, and the gradient of queries */
INLINE void contract_few(const int C, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq, int64_t nv, const vec *s,
                         const vec *packed, float *rows) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += 8 / C) {
      vec sum[8] = {0};
      for (int64_t v = 0; v < nv; v++)
        UNROLL for (int i = 0; i < 8 / C; i++)
          UNROLL for (int c = 0; c < C; c++)
            sum[i * C + c] += s[AT(v, q) + h + i] * packed[(v * H + h + i) * F + f + c];
      add_sums(C, H, F, h, f, sum, rows + q * H * F);
    }
}

/* packed[v][h][f] += sum over queries of s[h] rows[q][h][f]: gradients of keys, and of values of the linear network */
INLINE void spread_few(const int C, const int N, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t h, int64_t nq,
                       const vec *s, const float *rows, vec *packed) {
  vec sum[2][4];
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) sum[j][c] = packed[(j * H + h) * F + f + c];
  for (int64_t q = 0; q < nq; q++)
    UNROLL for (int j = 0; j < N; j++)
      UNROLL for (int c = 0; c < C; c++) sum[j][c] += s[AT(j, q) + h] * rows[(q * H + h) * F + f + c];
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int c = 0; c < C; c++) packed[(j * H + h) * F + f + c] = sum[j][c];
}

INLINE void spread(const int C, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq, int64_t nv, const vec *s,
                   const float *rows, vec *packed) {
  for (int64_t h = 0; h < H; h++) {
    int64_t v = 0;
    for (; v + 2 <= nv; v += 2) spread_few(C, 2, H, F, HP, f, h, nq, s + AT(v, 0), rows, packed + v * H * F);
    if (v < nv) spread_few(C, 1, H, F, HP, f, h, nq, s + AT(v, 0), rows, packed + v * H * F);
  }
}

/* ---------------------------------------------------------------- hypernetwork value networks */

/* z = r^2 relu(sum_h s v) for Q queries and one vector of keys; C features from f on */
INLINE void hidden_few(const int C, const int Q, int64_t H, int64_t F, int64_t HP, int64_t rms, int64_t relu, int first,
                       const vec *s, const vec *values, vec *square, vec *z) {
  vec x[2][4] = {0}, norm[2] = {0};
  for (int64_t h = 0; h < H; h++)
    UNROLL for (int i = 0; i < Q; i++) {
      vec sh = s[i * HP + h];
      UNROLL for (int c = 0; c < C; c++) x[i][c] += sh * values[h * F + c];
      if (rms && first) norm[i] += sh * sh;
    }
  UNROLL for (int i = 0; i < Q; i++) {
    if (rms && first) square[i] = 1.0f / (norm[i] * (1.0f / H) + RMS_EPSILON);
    UNROLL for (int c = 0; c < C; c++) {
      vec y = relu ? keep(x[i][c], alive(x[i][c])) : x[i][c];
      z[i * CHUNK + c] = rms ? y * square[i] : y;
    }
  }
}

INLINE void hyper_forward(const int C, int64_t H, int64_t F, int64_t HP, int64_t rms, int64_t relu, int64_t f, int64_t nq,
                          int64_t nv, const vec *s, const vec *values, vec *square, vec *z, float *rows) {
  for (int64_t v = 0; v < nv; v++) {
    int64_t q = 0, at = v * TILE_QUERIES;
#define HIDDEN(Q)                                                                                                      \
  hidden_few(C, Q, H, F, HP, rms, relu, f == 0, s + AT(v, q), values + v * H * F + f, square + at + q, z + (at + q) * CHUNK)
    for (; q + 2 <= nq; q += 2) HIDDEN(2);
    if (q < nq) HIDDEN(1);
  }
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += 8 / C) {
      vec sum[8] = {0};
      for (int64_t v = 0; v < nv; v++)
        UNROLL for (int i = 0; i < 8 / C; i++)
          UNROLL for (int c = 0; c < C; c++)
            sum[i * C + c] += s[AT(v, q) + h + i] * z[(v * TILE_QUERIES + q) * CHUNK + c];
      add_sums(C, H, F, h, f, sum, rows + q * H * F);
    }
}

/* The gradient of the scores (into ds) and t of the header (for the gradient of values). */
INLINE void hyper_backward(const int C, int64_t H, int64_t F, int64_t HP, int64_t rms, int64_t relu, int64_t f, int64_t nq,
                           int64_t nv, const vec *tile, const vec *values, const float *grads, vec *square, vec *dot, vec *t,
                           vec *gradient) {
  const int first = f == 0, last = f + C == F;
  for (int64_t v = 0; v < nv; v++)
    for (int64_t q = 0; q < nq; q++) {
      const vec *s = tile + AT(v, q), *value = values + v * H * F + f;
      const float *g = grads + q * H * F + f;
      vec *ds = gradient + AT(v, q);
      const int64_t at = v * TILE_QUERIES + q;
      vec x[4] = {0}, u[4] = {0}, norm = {0};
      for (int64_t h = 0; h < H; h++) {
        vec sh = s[h];
        UNROLL for (int c = 0; c < C; c++) {
          x[c] += sh * value[h * F + c];
          u[c] += sh * g[h * F + c];
        }
        if (rms && first) norm += sh * sh;
      }
      vec r2 = {0}, d = first ? splat(0) : dot[at];
      if (rms) r2 = first ? 1.0f / (norm * (1.0f / H) + RMS_EPSILON) : square[at];
      UNROLL for (int c = 0; c < C; c++) {
        if (relu) {
          ivec m = alive(x[c]);
          x[c] = keep(x[c], m);
          u[c] = keep(u[c], m);
        }
        if (rms) {
          x[c] *= r2;
          d += x[c] * u[c];
          u[c] *= r2;
        }
        t[at * CHUNK + c] = u[c];
      }
      if (rms && !last) {
        square[at] = r2;
        dot[at] = d;
      }
      d *= r2 * (-2.0f / H);
      for (int64_t h = 0; h < H; h++) {
        vec sum = first ? splat(0) : ds[h], other = rms && last ? s[h] * d : splat(0);
        UNROLL for (int c = 0; c < C; c++) {
          sum += x[c] * g[h * F + c];
          other += u[c] * value[h * F + c];
        }
        ds[h] = sum + other;
      }
    }
}

/* packed[v][h][f] += sum over queries of s[h] t[f]: the gradient of values */
INLINE void spread_hidden(const int C, int64_t H, int64_t F, int64_t HP, int64_t f, int64_t nq, int64_t nv, const vec *s,
                          const vec *t, vec *packed) {
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
        UNROLL for (int c = 0; c < C; c++) {
          vec tc = t[(v * TILE_QUERIES + q) * CHUNK + c];
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

/* ---------------------------------------------------------------- normalisation of a tile */

/* Exponentiate a tile against its running row maximum, kept as a power of two: `row_shift` = maximum * log2(e).
   `factor` corrects what was summed with the earlier maximum. */
INLINE void softmax_online(int64_t H, int64_t HP, int64_t nq, int64_t nv, vec *s, float *row_shift, float *row_sum,
                           float *factor) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < H; h += 8) {
      vec part[8], before = load(row_shift + q * HP + h);
      UNROLL for (int i = 0; i < 8; i++) {
        part[i] = s[AT(0, q) + h + i];
        for (int64_t v = 1; v < nv; v++) part[i] = larger(s[AT(v, q) + h + i], part[i]);
      }
      vec shift = larger(max_lanes(part) * LOG2_E, before);
      store(row_shift + q * HP + h, shift);
      shift = choose(shift == splat(-INFINITY), splat(0), shift); /* no key so far: any finite shift will do */
      float shifts[8];
      store(shifts, shift);
      for (int i = 0; i < 8 && h + i < H; i++) {
        vec sum = splat(0);
        for (int64_t v = 0; v < nv; v++) {
          vec *a = s + AT(v, q) + h + i;
          *a = exp2_below_zero(*a * LOG2_E - shifts[i]);
          sum += *a;
        }
        part[i] = sum;
      }
      vec correct = exp2_below_zero(before - shift);
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
        *a = exp2_below_zero(*a * LOG2_E - row_shift[q * HP + h]) * row_scale[q * HP + h];
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

/* dots[q][h] += sum over keys of codes * gradient */
INLINE void add_row_dots(int64_t HP, int64_t nq, int64_t nv, const vec *codes, const vec *gradient, float *dots) {
  for (int64_t q = 0; q < nq; q++)
    for (int64_t h = 0; h < HP; h += 8) {
      vec sum[8] = {0};
      for (int64_t v = 0; v < nv; v++)
        UNROLL for (int i = 0; i < 8; i++) sum[i] += codes[AT(v, q) + h + i] * gradient[AT(v, q) + h + i];
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
