/* Gradients of a dense layer's weight and bias in one pass.

    grad_weight[o,i] = sum_t grad_out[t,o] x[t,i]        grad_bias[o] = sum_t grad_out[t,o]

Rows t are taken DEPTH at a time. A block of x is packed to [column / WIDTH][t][WIDTH], a tile of grad_out to [t][TILE], and
TILE x WIDTH sums are kept in registers. Who adds what in which order follows from the shapes alone, so the numbers do not
depend on the number of threads: a thread has its own rows of the weight.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"

#define TILE (MANY_REGISTERS ? 8 : 4) /* outputs */
#define WIDTH (2 * LANES)             /* inputs */
#define DEPTH 192
#define COLUMNS (512 / WIDTH * WIDTH) /* of x that are packed at a time: with DEPTH rows they stay in the second cache */

typedef struct {
  const float *x, *grad_out;       /* (rows, inputs), (rows, outputs) */
  float *grad_weight, *grad_bias;  /* (outputs, inputs), contiguous; (outputs), or NULL */
  int64_t rows, inputs, outputs, x_stride, grad_stride, threads;
} problem;

/* Columns `first` to `first` + `count` of `depth` rows, padded with zeros to whole panels. */
static void pack_inputs(float *to, const problem *p, int64_t row, int64_t depth, int64_t first, int64_t count) {
  for (int64_t c = 0; c < count; c += WIDTH, to += depth * WIDTH) {
    const int64_t n = smaller(WIDTH, count - c);
    const float *from = p->x + row * p->x_stride + first + c;
    for (int64_t t = 0; t < depth; t++, from += p->x_stride) {
      float *panel = to + t * WIDTH;
      if (n == WIDTH) {
        UNROLL for (int i = 0; i < 2; i++) store(panel + i * LANES, load(from + i * LANES));
      } else {
        memset(panel, 0, WIDTH * sizeof(float));
        memcpy(panel, from, n * sizeof(float));
      }
    }
  }
}

/* `count` <= TILE columns of grad_out, padded with zeros; `sums`: what they add up to, or NULL. */
static void pack_outputs(float *to, const problem *p, int64_t row, int64_t depth, int64_t first, int64_t count, float *sums) {
  const float *from = p->grad_out + row * p->grad_stride + first;
  float total[8] = {0};
  for (int64_t t = 0; t < depth; t++, from += p->grad_stride, to += TILE) {
    if (count == TILE) {
      UNROLL for (int o = 0; o < TILE; o++) to[o] = from[o];
    } else {
      for (int64_t o = 0; o < TILE; o++) to[o] = o < count ? from[o] : 0;
    }
    UNROLL for (int o = 0; o < TILE; o++) total[o] += to[o];
  }
  for (int64_t o = 0; sums && o < count; o++) sums[first + o] += total[o];
}

/* Add one tile to grad_weight: `outputs` <= TILE rows of `inputs` <= WIDTH columns. */
INLINE void add_tile(float *to, int64_t stride, const float *g, const float *x, int64_t depth, int64_t outputs, int64_t inputs) {
  vec sums[TILE][2] = {{{0}}};
  for (int64_t t = 0; t < depth; t++, g += TILE, x += WIDTH) {
    const vec left = load(x), right = load(x + LANES);
    UNROLL for (int o = 0; o < TILE; o++) {
      const vec each = splat(g[o]);
      sums[o][0] += each * left;
      sums[o][1] += each * right;
    }
  }
  for (int64_t o = 0; o < outputs; o++, to += stride) {
    if (inputs == WIDTH) {
      UNROLL for (int i = 0; i < 2; i++) store(to + i * LANES, load(to + i * LANES) + sums[o][i]);
    } else {
      const float *row = (const float *)sums[o];
      for (int64_t i = 0; i < inputs; i++) to[i] += row[i];
    }
  }
}

/* Rows `start` to `end` of grad_weight. */
static void fill_rows(const problem *p, int64_t start, int64_t end, float *panels, float *tile) {
  memset(p->grad_weight + start * p->inputs, 0, (end - start) * p->inputs * sizeof(float));
  if (p->grad_bias) memset(p->grad_bias + start, 0, (end - start) * sizeof(float));
  for (int64_t first = 0; first < p->inputs; first += COLUMNS) {
    const int64_t columns = smaller(COLUMNS, p->inputs - first);
    for (int64_t row = 0; row < p->rows; row += DEPTH) {
      const int64_t depth = smaller(DEPTH, p->rows - row);
      pack_inputs(panels, p, row, depth, first, columns);
      for (int64_t o = start; o < end; o += TILE) {
        const int64_t outputs = smaller(TILE, end - o);
        pack_outputs(tile, p, row, depth, o, outputs, first ? NULL : p->grad_bias);
        float *to = p->grad_weight + o * p->inputs + first;
        for (int64_t c = 0; c < columns; c += WIDTH)
          add_tile(to + c, p->inputs, tile, panels + depth * c, depth, outputs, smaller(WIDTH, columns - c));
      }
    }
  }
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_weight_gradient(const problem *given) {
  const problem p = *given;
  const int64_t tiles = (p.outputs + TILE - 1) / TILE, parts = smaller(p.threads, tiles);
  int failed = 0;
#pragma omp parallel for num_threads(parts) schedule(static) reduction(| : failed)
  for (int64_t part = 0; part < parts; part++) {
    const int64_t start = part * tiles / parts * TILE, end = smaller((part + 1) * tiles / parts * TILE, p.outputs);
    float *scratch = aligned_alloc(64, DEPTH * (COLUMNS + WIDTH + TILE) * sizeof(float));
    if (scratch) fill_rows(&p, start, end, scratch, scratch + DEPTH * (COLUMNS + WIDTH));
    failed |= !scratch;
    free(scratch);
  }
  return failed;
}
