/* Fused attention on CPUs, forward and backward: what recombine/attention/definition.py defines.

Nothing of size (query, key, feature) or (head, query, key) is ever stored: a tile of a few queries and at most 64 keys is
computed, used and forgotten, and the backward pass computes it again. Lanes are keys: a `vec` holds one number for each of
LANES neighbouring keys. Keys and values are repacked once per batch element to [key / LANES][head][feature][LANES].

The mathematics, for one query-key pair (s[h] scores, g[h,e] the gradient of out[q,h,e], H heads)

  forward of rms_head + hyper_relu (HYLA). With r = (mean_h s^2 + eps)^(-1/2), a = r s, and relu(r x) = r relu(x) for r > 0:

      out[h,e] += a[h] relu(sum_h' a[h'] v[h',e]) = s[h] r^2 relu(x[e])      x[e] = sum_h s[h] v[h,e]

  so that only r^2 = 1 / (mean_h s^2 + eps) is needed: no square root, and no pass that scales the scores.

  backward. Let u[e] = sum_h s[h] g[h,e]; m[e] = 1 where x[e] > 0 else 0 (hyper_linear: m = 1). The pair contributes
  L = r^2 sum_e m x u, and x and u are both linear in s. Write z = r^2 m x and t = r^2 m u. Then

      dL/dv[h,e] = s[h] t[e]
      dL/ds[h]   = sum_e (z[e] g[h,e] + t[e] v[h,e])  -  s[h] (2 r^2 / H) sum_e z[e] u[e]

  where the last term is the derivative of r^2, d(r^2)/ds[h] = -(2/H) r^4 s[h]. Without rms_head r = 1 and it is absent.

  softmax over keys: da = dL/da as above; ds[h] = a[h] (da[h] - D[h]) with D[h] = sum_k a[h] da[h]. If the keys do not fit in
  one tile, D comes from another pass or, for the linear value network, from D[h] = sum_e out[h,e] g[h,e]. The forward pass
  saves row maximum and inverse row sum.

  linear value network with rms_head: ds[h] = r (da[h] - a[h] mean_h'(a da)).

  scores: dq[q,h] = sum_k ds k[k,h] / sqrt(d), dk[k,h] = sum_q ds q[q,h] / sqrt(d), dbias[h,q,k] = sum over the batch of ds.

Results do not depend on the number of threads, bit for bit: who adds what in which order follows from the shapes alone.
*/
#include "cpu_backward.h"
#include "cpu_forward.h"

/* Returns 0, or 1 if there is not enough memory. */
int recombine_attend_forward(const problem *p) {
  plan l;
  int failed = 1;
  if (open_plan(&l, p, BLOCK_VECTORS, 0)) failed = p->batch >= 4 * p->threads ? forward_batches(&l) : forward_tiles(&l);
  close_plan(&l);
  return failed;
}

/* Returns 0, or 1 if there is not enough memory. The choice below may depend on shapes only. */
int recombine_attend_backward(const problem *p) {
  plan l;
  const int64_t pairs = p->heads * p->queries * p->keys;
  const int shared = p->grad_bias.data && !p->grad_bias.batch;
  const int steps = (p->batch < 16 && pairs * (p->dim + p->value_dim) > 1 << 20) || (shared && pairs > 1 << 20);
  /* enough blocks for 16 threads to share */
  int64_t most = steps ? at_most_one_less(at_most_one_less(p->keys, LANES), at_most_one_less(16, p->batch)) : BLOCK_VECTORS;
  int failed = !open_plan(&l, p, smaller(most, BLOCK_VECTORS), 1);
  if (!failed) failed = steps ? backward_steps(&l) : backward_batches(&l);
  close_plan(&l);
  return failed;
}


/* Whether vectors of 16 floats, and thus cpu_wide.c, are worth compiling here. */
int recombine_has_wide_vectors(void) {
#ifdef __AVX512F__
  return 1;
#else
  return 0;
#endif
}
