"""Which output scale trains best where HYLA replaces softmax attention in a plain `nn.TransformerEncoder`?

    python benchmarks/output_scale.py                  # about 15 minutes on one core; prints a table and writes JSON lines
    python benchmarks/output_scale.py --lengths 32 128 --steps 100

The model is torch's own encoder: 2 pre-norm layers of width 32 with 4 heads, no final norm, converted with
`recombine.convert`, and a linear readout. The task is recall: a token shows a key (of 16) and, in half of the cases, its
value (of 16), which is the same throughout a sequence; the other tokens show a key alone and are asked for its
value. Chance is 1/16, loss log 16 = 2.77. Each number is that of the best learning rate by the mean loss over the last
tenth of training, the mean over the seeds.
`softmax` is torch's own attention, not converted.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from recombine.attention.hyla import convert
from recombine.attention.layer import OUTPUT_SCALES

NUM_KEYS = NUM_VALUES = 16
RATES = (1e-3, 3e-3)


class Recaller(nn.Module):
    """Embeds keys and values, and reads a value at every token."""

    def __init__(self, output_scale: str | None, width: int = 32, num_heads: int = 4) -> None:
        super().__init__()
        self.keys = nn.Embedding(NUM_KEYS, width)
        self.values = nn.Embedding(NUM_VALUES + 1, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        if output_scale is not None:
            convert(self.encoder, "hyla", output_scale=output_scale)
        self.readout = nn.Linear(width, NUM_VALUES)

    def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.readout(self.encoder(self.keys(keys) + self.values(values)))


def sample(batch_size: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys, values as they are shown (`NUM_VALUES` where they are asked for), and the true values."""
    keys = torch.randint(NUM_KEYS, (batch_size, length), generator=generator)
    table = torch.randint(NUM_VALUES, (batch_size, NUM_KEYS), generator=generator)
    answers = table.gather(1, keys)
    asked = torch.rand(batch_size, length, generator=generator) < 0.5
    # the first token of each key shows its value, so that every question has an answer
    earlier = (keys[:, :, None] == keys[:, None, :]).tril(-1).any(dim=-1)
    return keys, torch.where(asked & earlier, NUM_VALUES, answers), answers


def train(output_scale: str | None, length: int, rate: float, seed: int, steps: int, batch_size: int) -> dict:
    torch.manual_seed(seed)
    model, generator = Recaller(output_scale), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 20))
    losses, right, start = [], [], time.perf_counter()
    for _ in range(steps):
        keys, values, answers = sample(batch_size, length, generator)
        asked = values == NUM_VALUES
        logits, answer = model(keys, values)[asked], answers[asked]
        loss = functional.cross_entropy(logits, answer)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        right.append((logits.argmax(-1) == answer).float().mean().item())
    last = max(steps // 10, 1)
    return {
        "scale": output_scale or "softmax",
        "length": length,
        "rate": rate,
        "seed": seed,
        "first_loss": losses[0],
        "loss": sum(losses[-last:]) / last,
        "accuracy": sum(right[-last:]) / last,
        "seconds": round(time.perf_counter() - start, 1),
    }


def summarise(rows: list[dict], lengths: list[int]) -> None:
    print("\naccuracy (first loss -> last loss) at the best rate, mean over seeds")
    print("| output scale | " + " | ".join(f"{length} tokens" for length in lengths) + " |")
    print("| --- |" + " --- |" * len(lengths))
    for scale in dict.fromkeys(row["scale"] for row in rows):
        cells = []
        for length in lengths:
            found = [row for row in rows if (row["scale"], row["length"]) == (scale, length)]
            means = {}
            for rate in {row["rate"] for row in found}:
                same = [row for row in found if row["rate"] == rate]
                means[rate] = {
                    name: sum(row[name] for row in same) / len(same) for name in ("loss", "accuracy", "first_loss")
                }
            best = min(means.values(), key=lambda mean: mean["loss"] if mean["loss"] == mean["loss"] else 1e9)
            cells.append(f"{best['accuracy']:.2f} ({best['first_loss']:.1f} -> {best['loss']:.2f})")
        print(f"| {scale} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128, 512, 1024])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per batch")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("output_scale.jsonl"))
    options = parser.parse_args()
    rows = []
    with options.out.open("w") as file:
        for length in options.lengths:
            for scale in (None, *OUTPUT_SCALES):
                for rate in options.rates:
                    for seed in options.seeds:
                        batch_size = max(options.tokens // length, 1)
                        row = train(scale, length, rate, seed, options.steps, batch_size)
                        rows.append(row)
                        file.write(json.dumps(row) + "\n")
                        file.flush()
                        print(row, flush=True)
    summarise(rows, options.lengths)


if __name__ == "__main__":
    main()
