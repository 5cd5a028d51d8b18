/* Dense layers with a sigmoid after each, for the tokens of sequences of different lengths; zeros behind their ends.

    x_(l+1) = sigmoid(W_l x_l + b_l)

LANES tokens are computed at a time, whatever sequence they are from. Sums over features are in order, so a token's
numbers do not depend on its neighbours or on the number of threads. And what else is done with such sequences: running sums,
and padding set to 0.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"
#include "past_caches.h"

#define MAX_WIDTH 256
#define MAX_LAYERS 4
#define BLOCK 16 /* rows that pass through all layers before the next ones do */

typedef struct {
  const float *x;                                        /* (rows, tokens, widths[0]) */
  const int64_t *lengths;                                /* (rows) */
  const float *weights[MAX_LAYERS], *biases[MAX_LAYERS]; /* (output, input), (output) */
  float *out;                                            /* (rows, tokens, widths[num_layers]) */
  int64_t widths[MAX_LAYERS + 1];
  int64_t num_layers, rows, tokens, threads;
} problem;

INLINE vec sigmoid(vec x) {
  return splat(1) / (splat(1) + exp2_of(-larger(splat(-126), x * splat(LOG2_E)))); /* a NaN stays */
}

/* `count` outputs from number `o` on, a constant: their sums are computed together. */
INLINE void apply_outputs(vec *to, const vec *from, const float *weight, const float *bias, int64_t inputs, int64_t o, int count) {
  vec sums[10];
  UNROLL for (int j = 0; j < count; j++) sums[j] = splat(0);
  for (int64_t i = 0; i < inputs; i++) {
    UNROLL for (int j = 0; j < count; j++) sums[j] += splat(weight[(o + j) * inputs + i]) * from[i];
  }
  UNROLL for (int j = 0; j < count; j++) to[o + j] = sigmoid(sums[j] + splat(bias[o + j]));
}

static void apply_layer(vec *restrict to, const vec *restrict from, const float *weight, const float *bias, int64_t inputs, int64_t outputs) {
  int64_t o = 0;
  for (; o + 10 <= outputs; o += 10) apply_outputs(to, from, weight, bias, inputs, o, 10);
  for (; o + 8 <= outputs; o += 8) apply_outputs(to, from, weight, bias, inputs, o, 8);
  for (; o + 4 <= outputs; o += 4) apply_outputs(to, from, weight, bias, inputs, o, 4);
  for (; o < outputs; o++) apply_outputs(to, from, weight, bias, inputs, o, 1);
}

/* Features of `count` <= LANES tokens, a token to a lane. The last block of features may overlap the one before. */
static void read_tokens(vec *to, const float *x, const int64_t *places, int64_t count, int64_t width) {
  for (int64_t i = 0; width >= LANES && i < width; i += LANES) {
    const int64_t first = smaller(i, width - LANES);
    for (int64_t j = 0; j < LANES; j++) to[first + j] = load(x + places[j < count ? j : 0] * width + first);
    transpose(to + first);
  }
  for (int64_t i = 0; width < LANES && i < width; i++) {
    float lanes[LANES] = {0};
    for (int64_t j = 0; j < count; j++) lanes[j] = x[places[j] * width + i];
    to[i] = load(lanes);
  }
}

static void write_tokens(float *x, const vec *from, const int64_t *places, int64_t count, int64_t width) {
  for (int64_t i = 0; width >= LANES && i < width; i += LANES) {
    const int64_t first = smaller(i, width - LANES);
    vec block[LANES];
    memcpy(block, from + first, sizeof block);
    transpose(block);
    for (int64_t j = 0; j < count; j++) store(x + places[j] * width + first, block[j]);
  }
  for (int64_t i = 0; width < LANES && i < width; i++) {
    float lanes[LANES];
    store(lanes, from[i]);
    for (int64_t j = 0; j < count; j++) x[places[j] * width + i] = lanes[j];
  }
}

/* `places` are the numbers of `count` <= LANES tokens. */
static void apply_layers(const problem *p, const int64_t *places, int64_t count) {
  vec first[MAX_WIDTH], second[MAX_WIDTH], *from = first, *to = second;
  read_tokens(from, p->x, places, count, p->widths[0]);
  for (int64_t l = 0; l < p->num_layers; l++) {
    apply_layer(to, from, p->weights[l], p->biases[l], p->widths[l], p->widths[l + 1]);
    vec *swapped = from;
    from = to, to = swapped;
  }
  write_tokens(p->out, from, places, count, p->widths[p->num_layers]);
}

static void apply_rows(const problem *p, int64_t start, int64_t end) {
  const int64_t outputs = p->widths[p->num_layers];
  int64_t places[LANES], count = 0;
  for (int64_t row = start; row < end; row++) {
    const int64_t length = p->lengths[row];
    for (int64_t t = 0; t < length; t++) {
      places[count++] = row * p->tokens + t;
      if (count == LANES) apply_layers(p, places, count), count = 0;
    }
    memset(p->out + (row * p->tokens + length) * outputs, 0, (p->tokens - length) * outputs * sizeof(float));
  }
  if (count) apply_layers(p, places, count);
}

/* Whether all lengths are possible; what is not would be written elsewhere. */
static int are_possible(const int64_t *lengths, int64_t rows, int64_t tokens) {
  int wrong = 0;
  for (int64_t row = 0; row < rows; row++) wrong |= (uint64_t)lengths[row] > (uint64_t)tokens;
  return !wrong;
}

/* Returns 0, or 1 if a length is not possible. */
int recombine_apply_layers(const problem *p) {
  if (!are_possible(p->lengths, p->rows, p->tokens)) return 1;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
  for (int64_t part = 0; part < p->threads; part++)
    apply_rows(p, part * p->rows / p->threads, (part + 1) * p->rows / p->threads);
  return 0;
}

/* Sums over the tokens so far of `count` features, a constant, in double precision. They stay in registers. */
#define DEFINE_SUM(name, count)                                                                                          \
  typedef float name##_floats __attribute__((vector_size(4 * count), aligned(4), may_alias));                            \
  typedef double name##_doubles __attribute__((vector_size(8 * count)));                                                 \
  INLINE void name(float *x, int64_t length, int64_t width) {                                                            \
    name##_doubles sums = {0};                                                                                           \
    for (int64_t t = 0; t < length; t++, x += width) {                                                                   \
      sums += __builtin_convertvector(*(name##_floats *)x, name##_doubles);                                              \
      *(name##_floats *)x = __builtin_convertvector(sums, name##_floats);                                                \
    }                                                                                                                    \
  }
DEFINE_SUM(sum_8, 8)
DEFINE_SUM(sum_4, 4)
DEFINE_SUM(sum_1, 1)

/* For the first `lengths` tokens of each row of `x` (rows, tokens, width). */
static void sum_tokens(float *x, const int64_t *lengths, int64_t rows, int64_t tokens, int64_t width) {
  for (int64_t row = 0; row < rows; row++, x += tokens * width) {
    int64_t i = 0;
    for (; i + 8 <= width; i += 8) sum_8(x + i, lengths[row], width);
    for (; i + 4 <= width; i += 4) sum_4(x + i, lengths[row], width);
    for (; i < width; i++) sum_1(x + i, lengths[row], width);
  }
}

/* Some rows of a problem, whose output goes elsewhere. */
static problem take_rows(const problem *p, const float *x, int64_t start, int64_t end, float *out) {
  problem part = *p;
  part.x = x, part.lengths += start, part.rows = end - start, part.out = out;
  return part;
}

/* Layers, sums over the tokens so far, layers, for rows that stay in cache. `room` is for both outputs. */
static void sum_rows(const problem *embed, const problem *readout, int64_t start, int64_t end, float *room) {
  const int64_t tokens = embed->tokens, inputs = embed->widths[0], count = (end - start) * tokens;
  const int64_t width = embed->widths[embed->num_layers], outputs = readout->widths[readout->num_layers];
  const problem first = take_rows(embed, embed->x + start * tokens * inputs, start, end, room);
  const problem second = take_rows(readout, first.out, start, end, room + BLOCK * tokens * width);
  for (int64_t i = 0; end < embed->rows && i < count * inputs; i += 16) /* the next rows, while these are computed */
    __builtin_prefetch(embed->x + end * tokens * inputs + i);
  apply_rows(&first, 0, first.rows);
  sum_tokens(first.out, first.lengths, first.rows, tokens, width);
  apply_rows(&second, 0, second.rows);
  copy_past_caches(embed->out + start * tokens * width, first.out, count * width);
  copy_past_caches(readout->out + start * tokens * outputs, second.out, count * outputs);
}

/* `embed->out` is `readout->x`. Returns 0, 1 if a length is not possible, or 2 if there is not enough memory. */
int recombine_sum_layers(const problem *embed, const problem *readout) {
  const int64_t blocks = (embed->rows + BLOCK - 1) / BLOCK, threads = embed->threads;
  const int64_t widths = embed->widths[embed->num_layers] + readout->widths[readout->num_layers];
  int failed = 0;
  if (!are_possible(embed->lengths, embed->rows, embed->tokens)) return 1;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : failed) if (threads > 1)
  for (int64_t part = 0; part < threads; part++) {
    float *room = malloc(BLOCK * embed->tokens * widths * sizeof(float));
    const int64_t end = room ? (part + 1) * blocks / threads : 0;
    for (int64_t block = part * blocks / threads; block < end; block++)
      sum_rows(embed, readout, block * BLOCK, smaller((block + 1) * BLOCK, embed->rows), room);
    finish_copies();
    failed |= room ? 0 : 2;
    free(room);
  }
  return failed;
}

/* Times 0, so that what is not a number stays visible. Returns 0, or 1 if a length is not possible. */
int recombine_clear_padding(float *x, const int64_t *lengths, int64_t rows, int64_t tokens, int64_t width) {
  if (!are_possible(lengths, rows, tokens)) return 1;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = (row * tokens + lengths[row]) * width; i < (row + 1) * tokens * width; i++) x[i] *= 0;
  return 0;
}
