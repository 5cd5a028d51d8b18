/* Dense layers with a sigmoid after each, for the tokens of sequences of different lengths; zeros behind their ends.

    x_(l+1) = sigmoid(W_l x_l + b_l)

LANES tokens are computed at a time, whatever sequence they are from. Sums over features are in order, so a token's
numbers do not depend on its neighbours or on the number of threads. And what else is done with such sequences: running sums,
and padding set to 0.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"

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
  vec exponent = x * splat(-LOG2_E);
  exponent = choose(exponent > splat(126), splat(126), exponent); /* a NaN is not larger, and stays */
  return splat(1) / (splat(1) + exp2_of(exponent));
}

/* `count` outputs from number `o` on, a constant: their sums are computed together. */
INLINE void apply_outputs(vec *to, const vec *from, const float *weight, const float *bias, int64_t inputs, int64_t o, int count) {
  vec sums[8];
  UNROLL for (int j = 0; j < count; j++) sums[j] = splat(0);
  for (int64_t i = 0; i < inputs; i++) {
    UNROLL for (int j = 0; j < count; j++) sums[j] += splat(weight[(o + j) * inputs + i]) * from[i];
  }
  UNROLL for (int j = 0; j < count; j++) to[o + j] = sigmoid(sums[j] + splat(bias[o + j]));
}

static void apply_layer(vec *restrict to, const vec *restrict from, const float *weight, const float *bias, int64_t inputs, int64_t outputs) {
  int64_t o = 0;
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

int recombine_apply_layers(const problem *p) {
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
  for (int64_t part = 0; part < p->threads; part++)
    apply_rows(p, part * p->rows / p->threads, (part + 1) * p->rows / p->threads);
  return 0;
}

/* Sums over the tokens so far, for the first `lengths` tokens of each row of `x` (rows, tokens, width), in double precision. */
static void sum_tokens(float *x, const int64_t *lengths, int64_t rows, int64_t tokens, int64_t width) {
  double sums[MAX_WIDTH];
  for (int64_t row = 0; row < rows; row++) {
    float *at = x + row * tokens * width;
    memset(sums, 0, width * sizeof *sums);
    for (int64_t t = 0; t < lengths[row]; t++, at += width)
      for (int64_t i = 0; i < width; i++) sums[i] += at[i], at[i] = sums[i];
  }
}

/* Layers, sums over the tokens so far, layers: `embed->out` is `readout->x`. In blocks of rows, which stay in cache. */
int recombine_sum_layers(const problem *embed, const problem *readout) {
  const int64_t blocks = (embed->rows + BLOCK - 1) / BLOCK, tokens = embed->tokens, width = embed->widths[embed->num_layers];
#pragma omp parallel for num_threads(embed->threads) schedule(static) if (embed->threads > 1)
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t start = block * BLOCK, end = smaller(start + BLOCK, embed->rows);
    apply_rows(embed, start, end);
    sum_tokens(embed->out + start * tokens * width, embed->lengths + start, end - start, tokens, width);
    apply_rows(readout, start, end);
  }
  return 0;
}

/* Times 0, so that what is not a number stays visible. */
int recombine_clear_padding(float *x, const int64_t *lengths, int64_t rows, int64_t tokens, int64_t width) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = (row * tokens + lengths[row]) * width; i < (row + 1) * tokens * width; i++) x[i] *= 0;
  return 0;
}
