/* The layers of a transformer block around its attention, forward and backward, a few rows at a time that stay in cache.

    norm_dense     out = W norm(x) + b                                    queries, keys and values
    feed_forward   total = residual + W_o heads + b_o
                   hidden = W_1 norm(total) + b_1
                   out = total + W_2 gelu(hidden) + b_2

with norm the LayerNorm of norm.c and gelu that of gelu.c. The forward pass keeps x, and total and hidden, for the backward
pass, which computes the rest again.

The rows are cut into parts of whole chunks by their number alone. Each part sums the gradients of the parameters on its own,
and the parts are added in order: the numbers do not depend on the number of threads. Gradients of parameters are one array,
in the order of the fields below.
*/
#include "product.h"
#include "gelu.h"

#define CHUNK 96          /* rows: a multiple of TILE */
#define ROWS_OF_PART 512  /* at least */
#define MOST_PARTS 16
#define MOST_BUFFERS 8
#define SLICE 1024 /* of the gradients, when parts are added */

typedef struct {
  const float *x, *heads; /* (rows, width): the input of norm_dense, or the residual; (rows, inner) */
  float *total, *hidden;  /* kept by feed_forward (rows, width), (rows, mlp); NULL if no gradient is needed */
  float *out;
  const float *grad_out, *grad_total; /* grad_total, of norm_dense: of x besides, or NULL */
  float *grad_x, *grad_heads;
  const float *gain, *shift;                               /* (width) */
  const float *weight, *bias;                              /* norm_dense: (inner, width), (inner); else (width, inner), (width) */
  const float *in_weight, *in_bias, *out_weight, *out_bias; /* (mlp, width), (mlp), (width, mlp), (width) */
  float *gradients;
  double epsilon;
  int64_t rows, width, inner, mlp, threads;
} problem;

/* ---------------------------------------------------------------- rows in scratch memory */

static void copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, width * sizeof(float));
}

static void add_columns(float *sums, const float *rows_of, int64_t stride, int64_t rows, int64_t width) {
  for (int64_t f = 0; f < width; f += LANES) {
    vec total = load(sums + f);
    for (int64_t r = 0; r < rows; r++) total += load(rows_of + r * stride + f);
    store(sums + f, total);
  }
}

/* `statistics`: mean and one over the deviation of each row. */
static void normalise(const problem *p, float *to, const float *x, int64_t x_stride, int64_t rows, float *statistics) {
  const int64_t width = p->width;
  for (int64_t r = 0; r < rows; r++, x += x_stride, to += STRIDE(width)) {
    vec sum = splat(0), squares = splat(0);
    for (int64_t f = 0; f < width; f += LANES) sum += load(x + f);
    const float mean = sum_of(sum) / width;
    for (int64_t f = 0; f < width; f += LANES) {
      const vec centred = load(x + f) - splat(mean);
      squares += centred * centred;
    }
    const float scale = 1 / sqrtf(sum_of(squares) / width + (float)p->epsilon);
    for (int64_t f = 0; f < width; f += LANES)
      store(to + f, (load(x + f) - splat(mean)) * splat(scale) * load(p->gain + f) + load(p->shift + f));
    statistics[2 * r] = mean, statistics[2 * r + 1] = scale;
  }
}

/* to = grad_total + the gradient through the norm of `g`; grad_total may be NULL. */
static void differentiate_norm(const problem *p, float *to, int64_t to_stride, const float *grad_total, int64_t total_stride,
                               const float *g, const float *x, int64_t x_stride, int64_t rows, const float *statistics,
                               float *grad_gain, float *grad_shift) {
  const int64_t width = p->width;
  for (int64_t r = 0; r < rows; r++, x += x_stride, g += STRIDE(width), to += to_stride) {
    const vec mean = splat(statistics[2 * r]), scale = splat(statistics[2 * r + 1]);
    vec sum = splat(0), weighted = splat(0);
    for (int64_t f = 0; f < width; f += LANES) {
      const vec normed = (load(x + f) - mean) * scale, each = load(g + f), scaled = each * load(p->gain + f);
      sum += scaled, weighted += scaled * normed;
      store(grad_gain + f, load(grad_gain + f) + each * normed);
      store(grad_shift + f, load(grad_shift + f) + each);
    }
    const vec average = splat(sum_of(sum) / width), slope = splat(sum_of(weighted) / width);
    for (int64_t f = 0; f < width; f += LANES) {
      const vec normed = (load(x + f) - mean) * scale;
      const vec through = (load(g + f) * load(p->gain + f) - average - normed * slope) * scale;
      store(to + f, grad_total ? load(grad_total + r * total_stride + f) + through : through);
    }
  }
}

/* ---------------------------------------------------------------- chunks of rows */

/* Memory of a thread, and the weights packed for all. */
typedef struct {
  float *statistics, *buffers[MOST_BUFFERS];
} scratch;

static void forward_norm_dense(const problem *p, const float *const *panels, scratch *s, int64_t row, int64_t rows) {
  float *normed = s->buffers[0];
  normalise(p, normed, p->x + row * p->width, p->width, rows, s->statistics);
  multiply(p->out + row * p->inner, p->inner, normed, STRIDE(p->width), rows, panels[0], p->width, p->inner, p->bias, 0);
}

static void backward_norm_dense(const problem *p, const float *const *panels, scratch *s, int64_t row, int64_t rows,
                                float *gradients) {
  const int64_t E = p->width, D = p->inner;
  float *normed = s->buffers[0], *grad_normed = s->buffers[1], *g = s->buffers[2];
  float *grad_gain = gradients, *grad_shift = grad_gain + E, *grad_weight = grad_shift + E, *grad_bias = grad_weight + D * E;
  const float *x = p->x + row * E;
  copy_rows(g, STRIDE(D), p->grad_out + row * D, D, rows, D);
  normalise(p, normed, x, E, rows, s->statistics);
  add_weight_gradient(grad_weight, g, STRIDE(D), D, normed, STRIDE(E), E, rows);
  add_columns(grad_bias, g, STRIDE(D), rows, D);
  multiply(grad_normed, STRIDE(E), g, STRIDE(D), rows, panels[0], D, E, NULL, 0);
  differentiate_norm(p, p->grad_x + row * E, E, p->grad_total ? p->grad_total + row * E : NULL, E, grad_normed, x, E, rows,
                     s->statistics, grad_gain, grad_shift);
}

static void forward_feed_forward(const problem *p, const float *const *panels, scratch *s, int64_t row, int64_t rows) {
  const int64_t E = p->width, D = p->inner, M = p->mlp;
  float *normed = s->buffers[0], *heads = s->buffers[2], *active = s->buffers[3];
  float *total = p->total ? p->total + row * E : s->buffers[1], *hidden = p->hidden ? p->hidden + row * M : s->buffers[4];
  copy_rows(heads, STRIDE(D), p->heads + row * D, D, rows, D);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < E; f += LANES) store(total + r * E + f, load(p->x + (row + r) * E + f) + load(p->bias + f));
  multiply(total, E, heads, STRIDE(D), rows, panels[0], D, E, total, E);
  normalise(p, normed, total, E, rows, s->statistics);
  multiply(hidden, M, normed, STRIDE(E), rows, panels[1], E, M, p->in_bias, 0);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < M; f += LANES) store(active + r * STRIDE(M) + f, gelu(load(hidden + r * M + f)));
  float *out = p->out + row * E;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < E; f += LANES) store(out + r * E + f, load(total + r * E + f) + load(p->out_bias + f));
  multiply(out, E, active, STRIDE(M), rows, panels[2], M, E, out, E);
}

static void backward_feed_forward(const problem *p, const float *const *panels, scratch *s, int64_t row, int64_t rows,
                                  float *gradients) {
  const int64_t E = p->width, D = p->inner, M = p->mlp;
  float *normed = s->buffers[0], *grad_normed = s->buffers[1], *heads = s->buffers[2], *active = s->buffers[3];
  float *grad_hidden = s->buffers[4], *g = s->buffers[5];
  float *grad_gain = gradients, *grad_shift = grad_gain + E, *grad_weight = grad_shift + E, *grad_bias = grad_weight + E * D;
  float *grad_in = grad_bias + E, *grad_in_bias = grad_in + M * E, *grad_out = grad_in_bias + M, *grad_out_bias = grad_out + E * M;
  const float *total = p->total + row * E, *hidden = p->hidden + row * M;
  copy_rows(g, STRIDE(E), p->grad_out + row * E, E, rows, E);
  add_columns(grad_out_bias, g, STRIDE(E), rows, E);
  multiply(grad_hidden, STRIDE(M), g, STRIDE(E), rows, panels[2], E, M, NULL, 0);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < M; f += LANES) {
      float *to = grad_hidden + r * STRIDE(M) + f;
      vec value, slope = gelu_and_slope(load(hidden + r * M + f), &value);
      store(active + r * STRIDE(M) + f, value);
      store(to, load(to) * slope);
    }
  add_weight_gradient(grad_out, g, STRIDE(E), E, active, STRIDE(M), M, rows);
  add_columns(grad_in_bias, grad_hidden, STRIDE(M), rows, M);
  normalise(p, normed, total, E, rows, s->statistics);
  add_weight_gradient(grad_in, grad_hidden, STRIDE(M), M, normed, STRIDE(E), E, rows);
  multiply(grad_normed, STRIDE(E), grad_hidden, STRIDE(M), rows, panels[1], M, E, NULL, 0);
  differentiate_norm(p, g, STRIDE(E), g, STRIDE(E), grad_normed, total, E, rows, s->statistics, grad_gain, grad_shift);
  copy_rows(p->grad_x + row * E, E, g, STRIDE(E), rows, E);
  add_columns(grad_bias, g, STRIDE(E), rows, E);
  copy_rows(heads, STRIDE(D), p->heads + row * D, D, rows, D);
  add_weight_gradient(grad_weight, g, STRIDE(E), E, heads, STRIDE(D), D, rows);
  multiply(p->grad_heads + row * D, D, g, STRIDE(E), rows, panels[0], E, D, NULL, 0);
}

/* ---------------------------------------------------------------- threads */

static int64_t count_parts(int64_t rows) {
  int64_t parts = 1;
  while (parts < MOST_PARTS && 2 * parts * ROWS_OF_PART <= rows) parts *= 2;
  return parts;
}

static float *allocate(int64_t numbers) { return aligned_alloc(64, (numbers * sizeof(float) + 63) / 64 * 64); }

/* Scratch for a chunk: rows of the widths above, in the order of the buffers. */
static float *open_scratch(const problem *p, scratch *s) {
  const int64_t widths[MOST_BUFFERS] = {p->width, p->width, p->inner, p->mlp, p->mlp, p->width};
  int64_t size = 2 * CHUNK;
  for (int i = 0; i < MOST_BUFFERS; i++) size += widths[i] ? CHUNK * STRIDE(widths[i]) : 0;
  float *memory = s->statistics = allocate(size), *next = memory + 2 * CHUNK;
  for (int i = 0; memory && i < MOST_BUFFERS; i++) {
    s->buffers[i] = next;
    next += widths[i] ? CHUNK * STRIDE(widths[i]) : 0;
  }
  return memory;
}

/* The panels of up to three weights. */
static float *pack_weights(const problem *p, const float **panels, int is_forward) {
  const struct {
    const float *weight;
    int64_t outputs, inputs;
  } weights[] = {{p->weight, p->mlp ? p->width : p->inner, p->mlp ? p->inner : p->width},
                 {p->in_weight, p->mlp, p->width},
                 {p->out_weight, p->width, p->mlp}};
  float *memory = allocate(p->width * (p->inner + 2 * p->mlp)), *next = memory;
  for (int i = 0; memory && i < (p->mlp ? 3 : 1); i++) {
    (is_forward ? pack_transposed : pack_straight)(next, weights[i].weight, weights[i].outputs, weights[i].inputs);
    panels[i] = next;
    next += weights[i].outputs * weights[i].inputs;
  }
  return memory;
}

typedef void chunk_forward(const problem *, const float *const *, scratch *, int64_t, int64_t);
typedef void chunk_backward(const problem *, const float *const *, scratch *, int64_t, int64_t, float *);

/* Returns 0, or 1 if there is not enough memory. */
static int run_forward(const problem *p, chunk_forward *run) {
  const int64_t chunks = (p->rows + CHUNK - 1) / CHUNK;
  const float *panels[3];
  float *packed = pack_weights(p, panels, 1);
  int failed = !packed;
#pragma omp parallel num_threads(smaller(p->threads, chunks)) reduction(| : failed) if (!failed)
  {
    scratch s;
    float *memory = open_scratch(p, &s);
    failed |= !memory;
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks; c++)
      if (memory && packed) run(p, panels, &s, c * CHUNK, smaller(CHUNK, p->rows - c * CHUNK));
    free(memory);
  }
  free(packed);
  return failed;
}

static int run_backward(const problem *p, chunk_backward *run) {
  const int64_t chunks = (p->rows + CHUNK - 1) / CHUNK, parts = count_parts(p->rows), E = p->width;
  const int64_t size = 2 * E + E * p->inner + (p->mlp ? E + 2 * E * p->mlp + p->mlp + E : p->inner);
  const float *panels[3];
  float *packed = pack_weights(p, panels, 0), *others = allocate((parts - 1) * size);
  int failed = !packed || !others;
#pragma omp parallel num_threads(smaller(p->threads, parts)) reduction(| : failed) if (!failed)
  {
    scratch s;
    float *memory = open_scratch(p, &s);
    failed |= !memory;
#pragma omp for schedule(dynamic)
    for (int64_t part = 0; part < parts; part++) {
      float *sums = part ? others + (part - 1) * size : p->gradients;
      if (!memory || !packed || !others) continue;
      memset(sums, 0, size * sizeof(float));
      for (int64_t c = part * chunks / parts; c < (part + 1) * chunks / parts; c++)
        run(p, panels, &s, c * CHUNK, smaller(CHUNK, p->rows - c * CHUNK), sums);
    }
    free(memory);
#pragma omp for schedule(static)
    for (int64_t slice = 0; slice < size; slice += SLICE)
      for (int64_t part = 1; others && part < parts; part++)
        for (int64_t i = slice; i < smaller(slice + SLICE, size); i++) p->gradients[i] += others[(part - 1) * size + i];
  }
  free(packed);
  free(others);
  return failed;
}

int recombine_norm_dense_forward(const problem *given) {
  const problem p = *given;
  return run_forward(&p, forward_norm_dense);
}

int recombine_norm_dense_backward(const problem *given) {
  const problem p = *given;
  return run_backward(&p, backward_norm_dense);
}

int recombine_feed_forward_forward(const problem *given) {
  const problem p = *given;
  return run_forward(&p, forward_feed_forward);
}

int recombine_feed_forward_backward(const problem *given) {
  const problem p = *given;
  return run_backward(&p, backward_feed_forward);
}
