/* Dense layers with a sigmoid after each, for the tokens of sequences of different lengths; zeros behind their ends.

    x_(l+1) = sigmoid(W_l x_l + b_l)

LANES tokens are computed at a time, whatever sequence they are from. Sums over features are in order, so a token's
numbers do not depend on its neighbours or on the number of threads.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"

#define MAX_WIDTH 256
#define MAX_LAYERS 4
#define OUTPUTS 4 /* sums that are computed together */

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

static void apply_layer(vec *restrict to, const vec *restrict from, const float *weight, const float *bias, int64_t inputs, int64_t outputs) {
  int64_t o = 0;
  for (; o + OUTPUTS <= outputs; o += OUTPUTS) {
    vec sums[OUTPUTS];
    UNROLL for (int j = 0; j < OUTPUTS; j++) sums[j] = splat(0);
    for (int64_t i = 0; i < inputs; i++) {
      UNROLL for (int j = 0; j < OUTPUTS; j++) sums[j] += splat(weight[(o + j) * inputs + i]) * from[i];
    }
    UNROLL for (int j = 0; j < OUTPUTS; j++) to[o + j] = sigmoid(sums[j] + splat(bias[o + j]));
  }
  for (; o < outputs; o++) {
    vec sum = splat(0);
    for (int64_t i = 0; i < inputs; i++) sum += splat(weight[o * inputs + i]) * from[i];
    to[o] = sigmoid(sum + splat(bias[o]));
  }
}

/* `places` are the numbers of `count` <= LANES tokens. */
static void apply_layers(const problem *p, const int64_t *places, int64_t count) {
  vec first[MAX_WIDTH], second[MAX_WIDTH], *from = first, *to = second;
  const int64_t inputs = p->widths[0], outputs = p->widths[p->num_layers];
  for (int64_t i = 0; i < inputs; i++) {
    float lanes[LANES] = {0};
    for (int64_t j = 0; j < count; j++) lanes[j] = p->x[places[j] * inputs + i];
    from[i] = load(lanes);
  }
  for (int64_t l = 0; l < p->num_layers; l++) {
    apply_layer(to, from, p->weights[l], p->biases[l], p->widths[l], p->widths[l + 1]);
    vec *swapped = from;
    from = to, to = swapped;
  }
  for (int64_t o = 0; o < outputs; o++) {
    float lanes[LANES];
    store(lanes, from[o]);
    for (int64_t j = 0; j < count; j++) p->out[places[j] * outputs + o] = lanes[j];
  }
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
