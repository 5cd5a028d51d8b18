/* Rows of features in float32 or bf16, a vector at a time: shared by the kernels that work row by row. */
#ifndef RECOMBINE_ROWS_H
#define RECOMBINE_ROWS_H

#include "cpu_vector.h"

#define ROWS 64 /* whose sums are added first, so that sums over rows do not depend on the number of threads */

INLINE int64_t lanes_left(int64_t width, int64_t f) { return width - f < LANES ? width - f : LANES; }

/* n <= LANES numbers from `at` on, with zeros behind them. */
INLINE vec read_vec(const void *data, int64_t at, int64_t n, int64_t bf16) {
  if (n == LANES) return bf16 ? load_bf16((const uint16_t *)data + at) : load((const float *)data + at);
  float row[LANES] = {0};
  read_floats(row, data, at, n, bf16);
  return load(row);
}

INLINE void write_vec(void *data, int64_t at, vec x, int64_t n, int64_t bf16) {
  if (n == LANES) {
    if (bf16) store_bf16((uint16_t *)data + at, x);
    else store((float *)data + at, x);
    return;
  }
  float row[LANES];
  store(row, x);
  write_floats(data, at, row, n, bf16);
}

INLINE void add_to(float *sums, int64_t f, vec x, int64_t n) { write_vec(sums, f, read_vec(sums, f, n, 0) + x, n, 0); }

/* Add up the sums of all blocks of rows. */
static void sum_blocks(float *to, const float *sums, int64_t blocks, int64_t stride, int64_t width) {
  memset(to, 0, width * sizeof(float));
  for (int64_t block = 0; block < blocks; block++)
    for (int64_t f = 0; f < width; f++) to[f] += sums[block * stride + f];
}

#endif
