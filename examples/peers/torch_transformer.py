"""A plain `torch.nn.TransformerEncoder` on any task of sequences.

recombine train in-context --scale small --model examples/peers/torch_transformer.py:TorchTransformer
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

import recombine


class TorchTransformer(nn.Module):
    """Two pre-norm layers with learned positions, and a linear readout of the last tokens."""

    def __init__(self, task: recombine.Task, width: int = 64) -> None:
        super().__init__()
        self.num_read, self.causal = task.num_read, task.requires_causal_model
        self.embed = nn.Linear(task.input_dim, width)
        self.position = nn.Parameter(0.02 * torch.randn(task.sequence_length, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = nn.Linear(width, task.output_dim)

    def forward(self, inputs: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch read outputs"]:
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=inputs.device) if self.causal else None
        states = self.encoder(self.embed(inputs) + self.position[:length], mask=mask, is_causal=self.causal)
        return self.output(states[:, -self.num_read :])


if __name__ == "__main__":
    run = recombine.train_run(recombine.default_run("in_context", "tiny", TorchTransformer), out="runs")
    print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
