/* The arithmetic peak of a thread: multiply-adds whose operands stay in registers, enough of them to hide their latency.

In bf16 an instruction multiplies twice as many numbers and sums in float32.
*/
#define RECOMBINE_WIDE
#include "cpu_vector.h"

#define CHAINS 12

typedef struct {
  float *sum; /* one number, so that nothing can be left out */
  int64_t repeats, bf16, threads;
} problem;

/* Multiply-adds per repeat and thread; 0 where there are no such instructions. */
int64_t recombine_count_multiply_adds(const problem *p) {
#ifdef __AVX512BF16__
  return CHAINS * LANES * (p->bf16 ? 2 : 1);
#else
  return p->bf16 ? 0 : CHAINS * LANES;
#endif
}

int recombine_multiply_adds(const problem *p) {
  float total = 0;
#pragma omp parallel num_threads(p->threads) reduction(+ : total)
  {
    vec sums[CHAINS], factor = splat(0.999f), term = splat(1e-3f);
    IN_REGISTER(factor);
    IN_REGISTER(term);
    UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = splat(i);
    for (int64_t t = 0; t < p->repeats; t++) {
#ifdef __AVX512BF16__
      if (p->bf16)
        UNROLL for (int i = 0; i < CHAINS; i++)
          sums[i] = (vec)_mm512_dpbf16_ps((__m512)sums[i], (__m512bh)factor, (__m512bh)term);
      else
#endif
        UNROLL for (int i = 0; i < CHAINS; i++) sums[i] = sums[i] * factor + term;
      UNROLL for (int i = 0; i < CHAINS; i++) IN_REGISTER(sums[i]);
    }
    UNROLL for (int i = 0; i < CHAINS; i++) total += sums[i][0];
  }
  *p->sum = total;
  return 0;
}
