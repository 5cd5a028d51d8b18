/* Copies that do not go through the caches.

A batch is written by one core and read by others. Before a core can write to memory that others have read, it has to fetch
it and to tell them; for a whole block, that takes longer than computing what is written. So blocks are computed in
memory of the core's own and copied from there with instructions that replace whole lines of memory. */
#ifndef RECOMBINE_PAST_CACHES_H
#define RECOMBINE_PAST_CACHES_H

#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

static void copy_past_caches(float *to, const float *from, int64_t count) {
  int64_t i = 0;
#ifdef __AVX__
  for (; i < count && (uintptr_t)(to + i) % 64; i++) to[i] = from[i];
  for (; i + 16 <= count; i += 16) {
    _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
    _mm256_stream_ps(to + i + 8, _mm256_loadu_ps(from + i + 8));
  }
#endif
  memcpy(to + i, from + i, (count - i) * sizeof(float));
}

/* After the last copy of a thread, before others read what it has copied. */
static void finish_copies(void) {
#ifdef __AVX__
  _mm_sfence();
#endif
}

#endif
