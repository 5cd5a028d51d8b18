"""The one door to attention: layers call `attend` from here and never a kernel directly.

Today it is the reference definition itself. A fused kernel is added as a file beside `reference.py` with the same
signature and chosen here, so that no layer changes.
"""

from recombine.kernels.reference import CodeMap, Normalisation, ValueNetwork, attend

__all__ = ["CodeMap", "Normalisation", "ValueNetwork", "attend"]
