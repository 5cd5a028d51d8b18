/* How tensors in float32 or bf16 are read into tiles, and written: see cpu.c. */
#ifndef RECOMBINE_CPU_TENSOR_H
#define RECOMBINE_CPU_TENSOR_H

#include "cpu_vector.h"

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

/* LANES tokens, from the given one, to [head][feature] vectors, or in another order; tokens past the end are zeros. */
static void pack(vec *packed, const tensor *t, int64_t b, int64_t token, int64_t tokens, int64_t heads, int64_t dim,
                 int64_t bf16, const int64_t *order, float *scratch) {
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
    UNROLL for (int i = 0; i < LANES; i++) packed[order ? order[f + i] : f + i] = x[i];
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) packed[order ? order[f] : f][i] = rows[i][f];
}

static void unpack(const tensor *t, int64_t b, int64_t token, int64_t tokens, const vec *packed, int64_t heads, int64_t dim,
                   int64_t bf16, const int64_t *order, float *scratch) {
  int64_t width = heads * dim, padded = (width + LANES - 1) / LANES * LANES, f = 0;
  const int direct = !bf16 && t->head == dim && token + LANES <= tokens;
  float *rows[LANES];
  for (int64_t i = 0; i < LANES; i++)
    rows[i] = direct ? (float *)t->data + b * t->batch + (token + i) * t->token : scratch + i * padded;
  for (; f + LANES <= width; f += LANES) {
    vec x[LANES];
    UNROLL for (int i = 0; i < LANES; i++) x[i] = packed[order ? order[f + i] : f + i];
    transpose(x);
    UNROLL for (int i = 0; i < LANES; i++) store(rows[i] + f, x[i]);
  }
  for (; f < width; f++)
    for (int i = 0; i < LANES; i++) rows[i][f] = packed[order ? order[f] : f][i];
  for (int64_t i = 0; i < LANES && token + i < tokens && !direct; i++) write_row(t, b, token + i, rows[i], heads, dim, bf16);
}

#endif
