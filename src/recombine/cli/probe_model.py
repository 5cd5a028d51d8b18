"""recombine probe-model FOLDER --prompts FILE: look inside a pretrained model of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.cli.probe import tables
from recombine.integrations.huggingface.probe import probe_pretrained


@dataclass(frozen=True, kw_only=True)
class ProbeModelOptions(Output):
    """Look inside a pretrained Hugging Face model, on prompts that you have labelled."""

    examples = (
        "recombine probe-model models/gpt2 --prompts prompts.jsonl",
        "recombine probe-model models/gpt2 --prompts prompts.jsonl -o runs/gpt2",
    )

    folder: Annotated[Path, Argument(metavar="FOLDER", positional=True)]
    """Folder with a pretrained model and its tokenizer, as `save_pretrained` writes them."""
    prompts: Path
    """JSON lines with `text` and `labels` (or `label`), and optionally `pair`, `split` and `answer`."""
    out: Annotated[Path, Argument(alias="-o")] = Path("runs")
    """Folder for the run directory, which `recombine report` reads."""
    num_instances: int = 4_000
    """Prompts per split, at most."""
    held_out: float = 0.25
    """Fraction of compositions of labels that decoders are not fitted on. Ignored if the prompts have splits."""
    seed: int = 0
    """Random seed for the split and the decoders."""
    max_tokens: int = 64
    """Longest prompt that is accepted, in tokens."""
    tsne: bool = True
    """Compute a t-SNE map of the codes."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, ..."""


def run(argv: list[str]) -> None:
    options = parse(ProbeModelOptions, argv, prog="probe-model")
    directory, result = probe_pretrained(
        options.folder,
        options.prompts,
        say=lambda part: options.say(f"probe-model: {part}"),
        **options.select("out", "num_instances", "held_out", "seed", "max_tokens", "tsne", "device"),
    )
    options.show(dict(result.numbers), *tables(result), f"{directory.path}")
