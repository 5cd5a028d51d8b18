/* Matrix products of rows that are in cache: the building blocks of fused layers.

Widths are multiples of 16 floats. A weight is packed once per call to panels [column / WIDTH][input][WIDTH]; TILE rows x WIDTH
columns of sums are kept in registers. Rows in scratch memory have a stride of STRIDE(width), so that neighbouring rows do not
compete for the same cache lines.
*/
#ifndef RECOMBINE_PRODUCT_H
#define RECOMBINE_PRODUCT_H

#ifndef RECOMBINE_NARROW
#define RECOMBINE_WIDE
#endif
#include "cpu_vector.h"

#define TILE (MANY_REGISTERS ? 12 : 6) /* rows */
#define WIDTH (2 * LANES)              /* columns */
#define STRIDE(width) ((width) + 16)

/* Panels of a weight (outputs, inputs) for x W^T. */
static void pack_transposed(float *to, const float *weight, int64_t outputs, int64_t inputs) {
  for (int64_t o = 0; o < outputs; o += WIDTH) {
    const int64_t width = smaller(WIDTH, outputs - o);
    for (int64_t i = 0; i < inputs; i += LANES)
      for (int64_t c = 0; c < width; c += LANES) {
        vec block[LANES];
        for (int l = 0; l < LANES; l++) block[l] = load(weight + (o + c + l) * inputs + i);
        transpose(block);
        for (int l = 0; l < LANES; l++) store(to + (i + l) * width + c, block[l]);
      }
    to += inputs * width;
  }
}

/* Panels of the same weight for g W. */
static void pack_straight(float *to, const float *weight, int64_t outputs, int64_t inputs) {
  for (int64_t i = 0; i < inputs; i += WIDTH) {
    const int64_t width = smaller(WIDTH, inputs - i);
    for (int64_t o = 0; o < outputs; o++, to += width) memcpy(to, weight + o * inputs + i, width * sizeof(float));
  }
}

/* to[r][c] (+)= sum_k x[r * row + k * step] panel[k][c], for ROWS rows and VECTORS vectors of columns. */
INLINE void multiply_tile(const int ROWS, const int VECTORS, float *to, int64_t to_stride, const float *x, int64_t row,
                          int64_t step, const float *panel, int64_t panel_stride, int64_t depth, const float *start,
                          int64_t start_stride) {
  vec sums[12][2];
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int v = 0; v < VECTORS; v++)
      sums[r][v] = start ? load(start + r * start_stride + v * LANES) : splat(0);
  for (int64_t k = 0; k < depth; k++, x += step, panel += panel_stride) {
    vec columns[2];
    UNROLL for (int v = 0; v < VECTORS; v++) {
      columns[v] = load(panel + v * LANES);
      IN_REGISTER(columns[v]);
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      const vec each = splat(x[r * row]);
      UNROLL for (int v = 0; v < VECTORS; v++) sums[r][v] += each * columns[v];
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++)
    UNROLL for (int v = 0; v < VECTORS; v++) store(to + r * to_stride + v * LANES, sums[r][v]);
}

#define TILE_CASE(N) case N: if (columns == WIDTH) MULTIPLY(N, 2); else MULTIPLY(N, 1); break;
#if MANY_REGISTERS
#define TILE_CASES TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6) \
    TILE_CASE(7) TILE_CASE(8) TILE_CASE(9) TILE_CASE(10) TILE_CASE(11) TILE_CASE(12)
#else
#define TILE_CASES TILE_CASE(1) TILE_CASE(2) TILE_CASE(3) TILE_CASE(4) TILE_CASE(5) TILE_CASE(6)
#endif

/* to = start + x . panels; `start`: rows of numbers, a row if its stride is 0, or NULL for zeros. It may be `to` itself. */
static __attribute__((noinline)) void multiply(float *to, int64_t to_stride, const float *x, int64_t x_stride, int64_t rows,
                                               const float *panels, int64_t depth, int64_t outputs, const float *start,
                                               int64_t start_stride) {
  for (int64_t r = 0; r < rows; r += TILE)
    for (int64_t c = 0; c < outputs; c += WIDTH) {
      const int64_t columns = smaller(WIDTH, outputs - c);
      const float *from = start ? start + r * start_stride + c : NULL;
#define MULTIPLY(ROWS, VECTORS)                                                                                 \
  multiply_tile(ROWS, VECTORS, to + r * to_stride + c, to_stride, x + r * x_stride, x_stride, 1, panels + c * depth, \
                VECTORS * LANES, depth, from, start_stride)
      switch (smaller(TILE, rows - r)) { TILE_CASES }
#undef MULTIPLY
    }
}

/* gradient (outputs, inputs) += g^T x */
static __attribute__((noinline)) void add_weight_gradient(float *gradient, const float *g, int64_t g_stride, int64_t outputs,
                                                          const float *x, int64_t x_stride, int64_t inputs, int64_t rows) {
  for (int64_t i = 0; i < inputs; i += WIDTH) {
    const int64_t columns = smaller(WIDTH, inputs - i);
    for (int64_t o = 0; o < outputs; o += TILE) {
      float *to = gradient + o * inputs + i;
#define MULTIPLY(ROWS, VECTORS) \
  multiply_tile(ROWS, VECTORS, to, inputs, g + o, 1, g_stride, x + i, x_stride, rows, to, inputs)
      switch (smaller(TILE, outputs - o)) { TILE_CASES }
#undef MULTIPLY
    }
  }
}

#endif
