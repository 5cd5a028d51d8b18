/* GELU of a sum with a bias, forward and backward, in one pass over memory each.

With w(x) = 2 sqrt(2/pi) (x + 0.044715 x^3) the tanh form x (1 + tanh(w/2)) / 2 is x sigmoid(w): one exponential, no tanh.

    y      = x s                                   x = h + bias, s = sigmoid(w(x))
    dy/dx  = s + x s (1 - s) w'(x)                 w'(x) = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)

The gradient of the bias is the sum of that of x over the rows: first over blocks of ROWS rows, then over the blocks, so that
it does not depend on the number of threads.
*/
#include "gelu.h"
#include "rows.h"

typedef struct {
  void *hidden, *out, *grad_out, *grad_hidden; /* (rows, width), contiguous, in float32 or bf16 */
  const float *bias;                           /* (width), or NULL */
  float *grad_bias;                            /* (width), or NULL */
  int64_t rows, width, bf16, threads;
} problem;

INLINE void forward_row(const problem *p, int64_t row, int64_t bf16) {
  for (int64_t f = 0; f < p->width; f += LANES) {
    const int64_t n = lanes_left(p->width, f), at = row * p->width + f;
    vec x = read_vec(p->hidden, at, n, bf16);
    if (p->bias) x += read_vec(p->bias, f, n, 0);
    write_vec(p->out, at, gelu(x), n, bf16);
  }
}

INLINE void backward_row(const problem *p, int64_t row, float *sums, int64_t bf16) {
  for (int64_t f = 0; f < p->width; f += LANES) {
    const int64_t n = lanes_left(p->width, f), at = row * p->width + f;
    vec x = read_vec(p->hidden, at, n, bf16);
    if (p->bias) x += read_vec(p->bias, f, n, 0);
    vec value, gradient = gelu_and_slope(x, &value) * read_vec(p->grad_out, at, n, bf16);
    write_vec(p->grad_hidden, at, gradient, n, bf16);
    if (sums) add_to(sums, f, gradient, n);
  }
}

int recombine_gelu_forward(const problem *p) {
#pragma omp parallel for num_threads(p->threads) schedule(static)
  for (int64_t row = 0; row < p->rows; row++)
    if (p->bf16) forward_row(p, row, 1);
    else forward_row(p, row, 0);
  return 0;
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_gelu_backward(const problem *p) {
  const int64_t blocks = (p->rows + ROWS - 1) / ROWS;
  float *sums = p->grad_bias ? calloc(blocks * p->width, sizeof(float)) : NULL;
  if (p->grad_bias && !sums) return 1;
#pragma omp parallel for num_threads(p->threads) schedule(static)
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t end = (block + 1) * ROWS < p->rows ? (block + 1) * ROWS : p->rows;
    float *own = sums ? sums + block * p->width : NULL;
    for (int64_t row = block * ROWS; row < end; row++)
      if (p->bf16) backward_row(p, row, own, 1);
      else backward_row(p, row, own, 0);
  }
  if (sums) sum_blocks(p->grad_bias, sums, blocks, p->width, p->width);
  free(sums);
  return 0;
}
