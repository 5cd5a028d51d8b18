/* GELU in its tanh form and its derivative: the mathematics is in gelu.c. */
#ifndef RECOMBINE_GELU_H
#define RECOMBINE_GELU_H

#include "cpu_vector.h"

#define SLOPE 1.5957691216057308f  /* 2 sqrt(2/pi) */
#define CUBIC 0.044715f

INLINE vec sigmoid_of_cubic(vec x, vec square) {
  vec exponent = x * (splat(SLOPE * LOG2_E) + splat(SLOPE * CUBIC * LOG2_E) * square);
  exponent = larger(splat(-125), exponent); /* NaN stays */
  return reciprocal(splat(1) + exp2_of(-exponent));
}

INLINE vec gelu(vec x) { return x * sigmoid_of_cubic(x, x * x); }

/* The derivative, and the value itself. */
INLINE vec gelu_and_slope(vec x, vec *value) {
  vec square = x * x, s = sigmoid_of_cubic(x, square);
  *value = x * s;
  return s + *value * (splat(1) - s) * (splat(SLOPE) + splat(3 * SLOPE * CUBIC) * square);
}

#endif
