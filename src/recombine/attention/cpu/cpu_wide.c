/* cpu.c with vectors of 16 floats, on machines with AVX-512: faster where there are many keys. */
#define RECOMBINE_WIDE
#define TILE_QUERIES 16 /* fewer passes over keys and values */
#include "cpu.c"
