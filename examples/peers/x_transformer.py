"""An encoder from x-transformers (`pip install x-transformers`) on any task of sequences.

recombine train in-context --scale small --model examples/peers/x_transformer.py:XTransformer
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from x_transformers import ContinuousTransformerWrapper, Decoder, Encoder

import recombine


class XTransformer(nn.Module):
    """Two layers with learned positions and gated feed-forward blocks."""

    def __init__(self, task: recombine.Task, width: int = 64) -> None:
        super().__init__()
        self.num_read = task.num_read
        layers = Decoder if task.requires_causal_model else Encoder
        self.model = ContinuousTransformerWrapper(
            dim_in=task.input_dim,
            dim_out=task.output_dim,
            max_seq_len=task.sequence_length,
            attn_layers=layers(dim=width, depth=2, heads=4, attn_dim_head=16, ff_mult=2, ff_glu=True),
        )

    def forward(self, inputs: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch read outputs"]:
        return self.model(inputs)[:, -self.num_read :]


if __name__ == "__main__":
    run = recombine.train_run(recombine.default_run("in_context", "tiny", XTransformer), out="runs")
    print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
