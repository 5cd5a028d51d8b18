"""See the latent codes of layers while a model runs, and change them: for models whose `forward` does not offer it.

layer.watch = CodeWatch(code_map=...)
model(inputs)
layer.watch.codes           # (b, h, q, k), as they were used
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recombine.kernels import CodeMap


@dataclass(kw_only=True)
class CodeWatch:
    """The codes of a layer's last call, and a change to make in its next one."""

    code_map: CodeMap | None = None
    codes: Tensor | None = None
