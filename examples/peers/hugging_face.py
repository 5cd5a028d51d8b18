"""A BERT encoder (GPT-2 where a causal model is required) from Hugging Face, built from a configuration, without weights.

recombine train in-context --scale small --model examples/peers/hugging_face.py:HuggingFace
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import recombine


class HuggingFace(nn.Module):
    """Two layers on embedded tokens (`inputs_embeds`), and a linear readout of the last tokens."""

    def __init__(self, task: recombine.Task, width: int = 64) -> None:
        super().__init__()
        self.num_read = task.num_read
        self.embed = nn.Linear(task.input_dim, width)
        if task.requires_causal_model:
            sizes = {
                "n_embd": width,
                "n_layer": 2,
                "n_head": 4,
                "n_inner": 2 * width,
                "n_positions": task.sequence_length,
            }
            self.model = GPT2Model(GPT2Config(vocab_size=1, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **sizes))
        else:
            sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4}
            sizes |= {"intermediate_size": 2 * width, "max_position_embeddings": task.sequence_length}
            config = BertConfig(vocab_size=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes)
            self.model = BertModel(config, add_pooling_layer=False)
        self.output = nn.Linear(width, task.output_dim)

    def forward(self, inputs: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch read outputs"]:
        states = self.model(inputs_embeds=self.embed(inputs)).last_hidden_state
        return self.output(states[:, -self.num_read :])


if __name__ == "__main__":
    run = recombine.train_run(recombine.default_run("in_context", "tiny", HuggingFace), out="runs")
    print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
