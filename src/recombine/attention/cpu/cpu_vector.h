/* Vectors of floats in plain C with vector extensions, and memory in float32 or bf16: shared by the CPU kernels. */
#ifndef RECOMBINE_CPU_VECTOR_H
#define RECOMBINE_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX__
#include <immintrin.h>
#endif
#if defined(RECOMBINE_WIDE) && defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__) && !defined(RECOMBINE_NARROW)
#define LANES 8
#else
#define LANES 4 /* NEON, SSE: compilers handle vectors wider than the machine's poorly */
#endif
#define MANY_REGISTERS (LANES == 16) /* 32, where there are 16 otherwise */
#define LOG2_E 1.4426950408889634f

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float loose_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias)); /* a vec at any address */
typedef uint16_t loose_halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias)); /* as many bf16 */

#if LANES == 16
#define IN_REGISTER(x) __asm__("" : "+v"(x)) /* any of 32 */
#elif defined(__AVX__)
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

INLINE int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* ---------------------------------------------------------------- vectors */

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec x) { *(loose_vec *)p = x; }
INLINE vec load_bf16(const uint16_t *p) {
#if LANES == 8 && defined(__AVX2__) /* compilers make two halves of it */
  return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
  return (vec)(__builtin_convertvector(*(const loose_halves *)p, ivec) << 16);
#endif
}

/* Rounded to nearest, ties to even; NaN stays NaN. The instruction for it takes numbers below 2^-126 as 0. */
INLINE void store_bf16(uint16_t *p, vec x) {
#if LANES == 8 && defined(__AVX512BF16__) && defined(__AVX512VL__)
  const __m128bh rounded = _mm256_cvtneps_pbh((__m256)x);
  memcpy(p, &rounded, sizeof rounded);
#else
  const ivec bits = (ivec)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, broken = x != x;
  *(loose_halves *)p = __builtin_convertvector((broken & 0x7fc0) | (rounded & ~broken), loose_halves);
#endif
}

INLINE vec keep(vec x, ivec mask) { return (vec)((ivec)x & mask); }
INLINE vec choose(ivec mask, vec x, vec y) { return (vec)(((ivec)x & mask) | ((ivec)y & ~mask)); }

/* x > y ? x : y. With NaN in either it is y: so larger(limit, y) keeps a NaN of y. */
INLINE vec larger(vec x, vec y) {
#if LANES == 16
  return (vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif LANES == 8
  return __builtin_ia32_maxps256(x, y);
#else
  return choose(x > y, x, y);
#endif
}

/* Set x and u to 0 where x <= floor. NaN in x passes, so that it is seen. */
INLINE void keep_above(vec floor, vec *x, vec *u) {
#if LANES == 16
  const __mmask16 above = _mm512_cmp_ps_mask((__m512)*x, (__m512)floor, _CMP_NLE_UQ);
  *x = (vec)_mm512_maskz_mov_ps(above, (__m512)*x), *u = (vec)_mm512_maskz_mov_ps(above, (__m512)*u);
#else
  const ivec above = ~(*x <= floor);
  *x = keep(*x, above), *u = keep(*u, above);
#endif
}

/* Reduce LANES vectors to one: lane i of the result is the sum (or maximum) over the lanes of x[i]. And transpose them. */
#if LANES == 16
#define EVEN 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30
#define ODD 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31
/* quarters of a vector: the first and third of two vectors, the second and fourth, and so on */
#define FIRST_THIRD 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define SECOND_FOURTH 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#define DEFINE_REDUCTION(name, COMBINE)                                                                                  \
  INLINE vec name(const vec *x) {                                                                                        \
    vec pair[8], quad[4], half[2];                                                                                       \
    UNROLL for (int i = 0; i < 8; i++)                                                                                   \
      pair[i] = COMBINE(SHUFFLE(x[2 * i], x[2 * i + 1], EVEN), SHUFFLE(x[2 * i], x[2 * i + 1], ODD));                    \
    UNROLL for (int i = 0; i < 4; i++)                                                                                   \
      quad[i] = COMBINE(SHUFFLE(pair[2 * i], pair[2 * i + 1], EVEN), SHUFFLE(pair[2 * i], pair[2 * i + 1], ODD));        \
    UNROLL for (int i = 0; i < 2; i++)                                                                                   \
      half[i] = COMBINE(SHUFFLE(quad[2 * i], quad[2 * i + 1], FIRST_THIRD),                                              \
                        SHUFFLE(quad[2 * i], quad[2 * i + 1], SECOND_FOURTH));                                           \
    return COMBINE(SHUFFLE(half[0], half[1], FIRST_THIRD), SHUFFLE(half[0], half[1], SECOND_FOURTH));                    \
  }

INLINE void transpose(vec *x) {
  vec a[16], b[16], c[16];
  UNROLL for (int i = 0; i < 16; i += 2) {
    a[i] = SHUFFLE(x[i], x[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    a[i + 1] = SHUFFLE(x[i], x[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  UNROLL for (int i = 0; i < 16; i += 4) {
    UNROLL for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = SHUFFLE(a[i + j], a[i + j + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      b[i + 2 * j + 1] = SHUFFLE(a[i + j], a[i + j + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
  /* quarter L of b[4 g + j] holds rows 4 g .. 4 g + 3 of column 4 L + j */
  UNROLL for (int j = 0; j < 4; j++) {
    UNROLL for (int g = 0; g < 2; g++) {
      c[8 * g + j] = SHUFFLE(b[8 * g + j], b[8 * g + 4 + j], FIRST_THIRD);
      c[8 * g + 4 + j] = SHUFFLE(b[8 * g + j], b[8 * g + 4 + j], SECOND_FOURTH);
    }
    x[j] = SHUFFLE(c[j], c[8 + j], FIRST_THIRD);
    x[8 + j] = SHUFFLE(c[j], c[8 + j], SECOND_FOURTH);
    x[4 + j] = SHUFFLE(c[4 + j], c[12 + j], FIRST_THIRD);
    x[12 + j] = SHUFFLE(c[4 + j], c[12 + j], SECOND_FOURTH);
  }
}
#elif LANES == 8
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

/* The sum over the lanes of one vector. */
INLINE float sum_of(vec x) {
#if LANES == 16
  x += SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x += SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x += SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  x += SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif LANES == 8
  x += SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  x += SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
  x += SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6);
#else
  x += SHUFFLE(x, x, 2, 3, 0, 1);
  x += SHUFFLE(x, x, 1, 0, 3, 2);
#endif
  return x[0];
}

/* 1 / x for 2^-126 < x < 2^126, to a few units in the last place where there is an estimate of 14 bits. */
INLINE vec reciprocal(vec x) {
#if LANES == 16
  const vec estimate = (vec)_mm512_rcp14_ps((__m512)x);
  return estimate * (splat(2) - x * estimate);
#else
  return splat(1) / x;
#endif
}

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
