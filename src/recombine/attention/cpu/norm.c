/* Residual sum and LayerNorm in one pass over the memory, forward and backward.

    forward    total  = residual + update                              (the update may be absent)
               normed = x gain + shift     x = (total - mean) / sqrt(variance + epsilon), over the features of a row

    backward   with g the gradient of normed, t that of total, a = g gain, and means over the row:

               gradient of residual and of update = t + (a - mean(a) - x mean(a x)) / sqrt(variance + epsilon)

The gradients of gain and shift are the sums of g x and of g over the rows. In bf16, `total` is rounded before it is
normalised: what is kept is what was normalised.

Several rows are taken at a time: the sums of one row alone would wait for every addition.
*/
#include "rows.h"

#define FORWARD_ROWS LANES
#define BACKWARD_ROWS (LANES / 2) /* with two sums each */

typedef struct {
  const void *residual, *update;        /* (rows, width), contiguous, in float32 or bf16; update may be NULL */
  void *total, *normed;                 /* total is the residual itself if there is no update */
  const void *grad_total, *grad_normed; /* each may be NULL: zeros */
  void *grad;                           /* of residual and update alike */
  const float *gain, *shift;            /* (width) */
  float *statistics;                    /* (rows, 2): mean, and one over the deviation */
  float *grad_gain, *grad_shift;
  double epsilon;
  int64_t rows, width, bf16, threads;
} problem;

INLINE vec only_first(vec x, int64_t n) {
  for (int64_t lane = n; lane < LANES; lane++) x[lane] = 0;
  return x;
}

/* One over the square root, in each lane. */
INLINE vec inverse_root(vec x) {
  UNROLL for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
  return splat(1) / x;
}

/* Ask for what the same place of the next rows will need; a cache line serves several vectors. */
INLINE void prefetch(const void *data, int64_t at, const int64_t bf16) {
  __builtin_prefetch((const char *)data + at * (bf16 ? 2 : 4));
}

/* `num_rows` of them from `row` on: FORWARD_ROWS or fewer. */
INLINE void forward_rows(const problem *p, int64_t row, const int num_rows, const int64_t bf16) {
  const int64_t width = p->width, start = row * width;
  vec sums[LANES] = {{0}}, squares[LANES] = {{0}};
  for (int64_t f = 0; f < width; f += LANES) {
    const int64_t n = lanes_left(width, f);
    UNROLL for (int r = 0; r < num_rows; r++) {
      const int64_t at = start + r * width + f, next = at + num_rows * width;
      prefetch(p->residual, next, bf16);
      prefetch(p->normed, next, bf16);
      if (p->update) {
        prefetch(p->update, next, bf16);
        prefetch(p->total, next, bf16);
      }
      vec x = read_vec(p->residual, at, n, bf16);
      if (p->update) {
        x += read_vec(p->update, at, n, bf16);
        write_vec(p->total, at, x, n, bf16);
        if (bf16) x = read_vec(p->total, at, n, bf16);
      }
      sums[r] += x;
    }
  }
  const vec mean = sum_lanes(sums) / splat(width);
  for (int64_t f = 0; f < width; f += LANES) {
    const int64_t n = lanes_left(width, f);
    UNROLL for (int r = 0; r < num_rows; r++) {
      vec x = read_vec(p->total, start + r * width + f, n, bf16) - splat(mean[r]);
      if (n < LANES) x = only_first(x, n);
      squares[r] += x * x;
    }
  }
  const vec scale = inverse_root(sum_lanes(squares) / splat(width) + splat(p->epsilon));
  for (int64_t f = 0; f < width; f += LANES) {
    const int64_t n = lanes_left(width, f);
    const vec gain = read_vec(p->gain, f, n, 0), shift = read_vec(p->shift, f, n, 0);
    UNROLL for (int r = 0; r < num_rows; r++) {
      const int64_t at = start + r * width + f;
      write_vec(p->normed, at, (read_vec(p->total, at, n, bf16) - splat(mean[r])) * splat(scale[r]) * gain + shift, n, bf16);
    }
  }
  for (int r = 0; r < num_rows; r++) {
    p->statistics[2 * (row + r)] = mean[r];
    p->statistics[2 * (row + r) + 1] = scale[r];
  }
}

/* The same number of rows or fewer, as above; `gain_sums` and `shift_sums`: the gradients of gain and shift so far. */
INLINE void backward_rows(const problem *p, int64_t row, const int num_rows, float *gain_sums, float *shift_sums,
                          const int64_t bf16) {
  const int64_t width = p->width, start = row * width;
  const float *statistics = p->statistics + 2 * row;
  vec sums[LANES] = {{0}}; /* of a, and behind them of a x */
  for (int64_t f = 0; f < width && p->grad_normed; f += LANES) {
    const int64_t n = lanes_left(width, f);
    const vec gain = read_vec(p->gain, f, n, 0);
    vec of_gain = splat(0), of_shift = splat(0);
    UNROLL for (int r = 0; r < num_rows; r++) {
      const int64_t at = start + r * width + f, next = at + num_rows * width;
      prefetch(p->total, next, bf16);
      prefetch(p->grad_normed, next, bf16);
      prefetch(p->grad, next, bf16);
      if (p->grad_total) prefetch(p->grad_total, next, bf16);
      const vec x = (read_vec(p->total, at, n, bf16) - splat(statistics[2 * r])) * splat(statistics[2 * r + 1]);
      const vec g = read_vec(p->grad_normed, at, n, bf16);
      sums[r] += g * gain;
      sums[BACKWARD_ROWS + r] += g * gain * x;
      of_gain += g * x;
      of_shift += g;
    }
    add_to(gain_sums, f, of_gain, n);
    add_to(shift_sums, f, of_shift, n);
  }
  const vec means = sum_lanes(sums) / splat(width);
  for (int64_t f = 0; f < width; f += LANES) {
    const int64_t n = lanes_left(width, f);
    const vec gain = read_vec(p->gain, f, n, 0);
    UNROLL for (int r = 0; r < num_rows; r++) {
      const int64_t at = start + r * width + f;
      const vec scale = splat(statistics[2 * r + 1]);
      vec gradient = splat(0);
      if (p->grad_normed) {
        const vec x = (read_vec(p->total, at, n, bf16) - splat(statistics[2 * r])) * scale;
        const vec a = read_vec(p->grad_normed, at, n, bf16) * gain;
        gradient = (a - splat(means[r]) - x * splat(means[BACKWARD_ROWS + r])) * scale;
      }
      if (p->grad_total) gradient += read_vec(p->grad_total, at, n, bf16);
      write_vec(p->grad, at, gradient, n, bf16);
    }
  }
}

INLINE void forward_block(const problem *p, int64_t row, int64_t end, const int64_t bf16) {
  for (; row + FORWARD_ROWS <= end; row += FORWARD_ROWS) forward_rows(p, row, FORWARD_ROWS, bf16);
  for (; row < end; row++) forward_rows(p, row, 1, bf16);
}

INLINE void backward_block(const problem *p, int64_t row, int64_t end, float *sums, const int64_t bf16) {
  float *gain_sums = sums, *shift_sums = sums + p->width;
  for (; row + BACKWARD_ROWS <= end; row += BACKWARD_ROWS)
    backward_rows(p, row, BACKWARD_ROWS, gain_sums, shift_sums, bf16);
  for (; row < end; row++) backward_rows(p, row, 1, gain_sums, shift_sums, bf16);
}

static int64_t end_of_block(const problem *p, int64_t block) {
  return (block + 1) * ROWS < p->rows ? (block + 1) * ROWS : p->rows;
}

int recombine_norm_forward(const problem *given) {
  const problem p = *given; /* a copy, or every store might change it */
  const int64_t blocks = (p.rows + ROWS - 1) / ROWS;
#pragma omp parallel for num_threads(p.threads) schedule(static)
  for (int64_t block = 0; block < blocks; block++)
    if (p.bf16) forward_block(&p, block * ROWS, end_of_block(&p, block), 1);
    else forward_block(&p, block * ROWS, end_of_block(&p, block), 0);
  return 0;
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_norm_backward(const problem *given) {
  const problem p = *given;
  const int64_t blocks = (p.rows + ROWS - 1) / ROWS, stride = 2 * p.width;
  float *sums = calloc(blocks * stride, sizeof(float));
  if (!sums) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(static)
  for (int64_t block = 0; block < blocks; block++)
    if (p.bf16) backward_block(&p, block * ROWS, end_of_block(&p, block), sums + block * stride, 1);
    else backward_block(&p, block * ROWS, end_of_block(&p, block), sums + block * stride, 0);
  sum_blocks(p.grad_gain, sums, blocks, stride, p.width);
  sum_blocks(p.grad_shift, sums + p.width, blocks, stride, p.width);
  free(sums);
  return 0;
}
