/* Vectors of floats in plain C with vector extensions, and memory in float32 or bf16: shared by the CPU kernels. */
#ifndef RECOMBINE_CPU_VECTOR_H
#define RECOMBINE_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX__) && !defined(RECOMBINE_NARROW)
#define LANES 8
#else
#define LANES 4 /* NEON, SSE: compilers handle vectors wider than the machine's poorly */
#endif
#define LOG2_E 1.4426950408889634f

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* a vec at any address */

#ifdef __AVX__
#define IN_REGISTER(x) __asm__("" : "+x"(x)) /* or the compiler reads it from memory again for each product */
#else
#define IN_REGISTER(x) (void)0
#endif
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* ---------------------------------------------------------------- vectors */

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec x) { *(loose_vec *)p = x; }
INLINE vec keep(vec x, ivec mask) { return (vec)((ivec)x & mask); }
INLINE vec choose(ivec mask, vec x, vec y) { return (vec)(((ivec)x & mask) | ((ivec)y & ~mask)); }

/* x > y ? x : y. With NaN in either it is y: so larger(limit, y) keeps a NaN of y. */
INLINE vec larger(vec x, vec y) {
#if LANES == 8
  return __builtin_ia32_maxps256(x, y);
#else
  return choose(x > y, x, y);
#endif
}

/* Reduce LANES vectors to one: lane i of the result is the sum (or maximum) over the lanes of x[i]. And transpose them. */
#if LANES == 8
#define EVEN 0, 2, 8, 10, 4, 6, 12, 14
#define ODD 1, 3, 9, 11, 5, 7, 13, 15
#define LOWER 0, 1, 2, 3, 8, 9, 10, 11
#define UPPER 4, 5, 6, 7, 12, 13, 14, 15
#define DEFINE_REDUCTION(name, COMBINE)                                                                                  \
  INLINE vec name(const vec *x) {                                                                                        \
    vec pair[4], quad[2];                                                                                                \
    UNROLL for (int i = 0; i < 4; i++)                                                                                   \
      pair[i] = COMBINE(SHUFFLE(x[2 * i], x[2 * i + 1], EVEN), SHUFFLE(x[2 * i], x[2 * i + 1], ODD));                    \
    UNROLL for (int i = 0; i < 2; i++)                                                                                   \
      quad[i] = COMBINE(SHUFFLE(pair[2 * i], pair[2 * i + 1], EVEN), SHUFFLE(pair[2 * i], pair[2 * i + 1], ODD));        \
    return COMBINE(SHUFFLE(quad[0], quad[1], LOWER), SHUFFLE(quad[0], quad[1], UPPER));                                  \
  }

INLINE void transpose(vec *x) {
  vec a[8], b[8];
  UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = SHUFFLE(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    b[i] = SHUFFLE(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 1] = SHUFFLE(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    b[i + 2] = SHUFFLE(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 3] = SHUFFLE(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    x[i] = SHUFFLE(b[i], b[i + 4], LOWER);
    x[i + 4] = SHUFFLE(b[i], b[i + 4], UPPER);
  }
}
#else
#define EVEN 0, 2, 4, 6
#define ODD 1, 3, 5, 7
#define DEFINE_REDUCTION(name, COMBINE)                                                                                  \
  INLINE vec name(const vec *x) {                                                                                        \
    vec pair[2];                                                                                                         \
    UNROLL for (int i = 0; i < 2; i++)                                                                                   \
      pair[i] = COMBINE(SHUFFLE(x[2 * i], x[2 * i + 1], EVEN), SHUFFLE(x[2 * i], x[2 * i + 1], ODD));                    \
    return COMBINE(SHUFFLE(pair[0], pair[1], EVEN), SHUFFLE(pair[0], pair[1], ODD));                                     \
  }

INLINE void transpose(vec *x) {
  vec a[4] = {SHUFFLE(x[0], x[1], 0, 4, 1, 5), SHUFFLE(x[0], x[1], 2, 6, 3, 7), SHUFFLE(x[2], x[3], 0, 4, 1, 5),
              SHUFFLE(x[2], x[3], 2, 6, 3, 7)};
  UNROLL for (int i = 0; i < 2; i++) {
    x[2 * i] = SHUFFLE(a[i], a[i + 2], 0, 1, 4, 5);
    x[2 * i + 1] = SHUFFLE(a[i], a[i + 2], 2, 3, 6, 7);
  }
}
#endif
#define ADD(x, y) ((x) + (y))
DEFINE_REDUCTION(sum_lanes, ADD)
DEFINE_REDUCTION(max_lanes, larger)

/* 2^x for x <= 127, to 1.5e-7 of it; exactly 0 for x <= -127, NaN for NaN. x = n + f, |f| <= 1/2, 2^f by a polynomial. */
INLINE vec exp2_of(vec x) {
  x = larger(splat(-127), x);
  const vec magic = splat(12582912.0f + 127.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
  vec shifted = x + magic, f = x - (shifted - magic);
  vec p = splat(1.327647129073739e-3f);
  p = p * f + splat(9.675540961325169e-3f);
  p = p * f + splat(5.550713092088699e-2f);
  p = p * f + splat(2.4022120237350464e-1f);
  p = p * f + splat(6.931469440460205e-1f);
  p = p * f + splat(1.0000001192092896f);
  return p * (vec)((ivec)shifted << 23);
}

/* ---------------------------------------------------------------- memory in float32 or bf16 */

static void read_floats(float *to, const void *data, int64_t at, int64_t n, int64_t bf16) {
  if (!bf16) {
    memcpy(to, (const float *)data + at, n * sizeof(float));
    return;
  }
  const uint16_t *from = (const uint16_t *)data + at;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = (uint32_t)from[i] << 16;
    memcpy(to + i, &bits, 4);
  }
}

static void write_floats(void *data, int64_t at, const float *from, int64_t n, int64_t bf16) {
  if (!bf16) {
    memcpy((float *)data + at, from, n * sizeof(float));
    return;
  }
  uint16_t *to = (uint16_t *)data + at;
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, from + i, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* to nearest, ties to even */
    to[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

#endif
