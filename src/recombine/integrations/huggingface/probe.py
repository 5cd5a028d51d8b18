"""Probe a pretrained model on prompts: decodability, structure, similarity, ablation and swap, as for our own runs.

The result is kept in a run directory, `probe.json` and `probe.npz`, so that `recombine report` shows it. It is used again
only if the prompts, the weights and the arguments are the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.inside.probe import NUM_INSTANCES, Say, probe_model
from recombine.inside.result import PROBE, ProbeResult
from recombine.integrations.huggingface.attention import import_interfaces
from recombine.integrations.huggingface.model import PretrainedModel
from recombine.integrations.huggingface.prompts import Prompts, read_prompts
from recombine.training.directory import RunDirectory
from recombine.training.run import resolve_device
from recombine.training.schema import Json

LOCALLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # code in a folder is never run
VERSION = 1  # of what this file adds to the probe


@torch.random.fork_rng(devices=())  # the caller's generator stays as it was
def probe_pretrained(
    folder: Path | str,
    prompts: Path | str,
    *,
    out: Path | str = "runs",
    num_instances: int = NUM_INSTANCES,
    held_out: float = 0.25,
    seed: int = 0,
    max_tokens: int = 64,
    tsne: bool = True,
    device: str = "auto",
    say: Say | None = None,
) -> tuple[RunDirectory, ProbeResult]:
    """Probe the model that `save_pretrained` left in a folder. Returns the run directory and the result."""
    folder, file, torch_device = Path(folder), read_prompts(prompts), resolve_device(device)
    import_interfaces()
    about = {"file": Path(prompts).name, "sha256": file.sha256}
    settings = {"held_out": held_out, "seed": seed, "max_tokens": max_tokens}
    config: Json = {
        "task": {"name": Prompts.name, "version": VERSION, **about, **settings},
        "model": {"kind": "pretrained", "version": VERSION, "name": folder.name, "sha256": hash_folder(folder)},
        "training": {},
    }
    arguments = {"num_instances": num_instances, "tsne": tsne}
    code = {"task": VERSION, "model": VERSION, "training": 0}
    key: Any = {"name": PROBE.name, "version": PROBE.version, "arguments": arguments, "checkpoint": None, "code": code}
    tokenizer, model, untrained = load_model(folder, with_head=file.has_answers)
    task = Prompts(file=file, tokenizer=tokenizer, max_tokens=max_tokens, held_out=held_out, seed=seed)
    pretrained = PretrainedModel(model, task).to(torch_device)
    _ = task.token_rows  # what is wrong with the prompts is said before anything is written
    run = RunDirectory.create(Path(out), f"prompts-{folder.name}", config)
    cached = ProbeResult.load(run, key)
    if cached is not None:
        return run, cached
    if say is not None:
        say("fit the readout")
    pretrained.fit_readout(task, torch_device)
    result = probe_model(
        pretrained,
        task,
        untrained=PretrainedModel(untrained, task),
        num_instances=num_instances,
        tsne=tsne,
        device=device,
        say=say,
    )
    run.write_json("split.json", {"certificate": task.split.certificate.as_dict()})
    result.numbers.update({"run": run.path.name, "task": task.name, "label": folder.name})
    result.write(run, key)
    return run, ProbeResult.load(run, key) or result


def load_model(folder: Path, *, with_head: bool) -> tuple[Any, nn.Module, nn.Module]:
    """Tokenizer, model, and the same model before training, from a local folder; nothing is downloaded.

    With a head, the class that the configuration names, which must return logits; else the transformer alone.
    """
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, **LOCALLY)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCALLY)
        owner: Any = transformers.AutoModel
        if with_head:
            name = str((config.architectures or ["none"])[0])
            owner = getattr(transformers, name, None)
            if not (isinstance(owner, type) and issubclass(owner, transformers.PreTrainedModel) and "LM" in name):
                raise InputError(f"{folder} holds a {name}: expected a language model, since the prompts have answers")
        model = owner.from_pretrained(folder, **LOCALLY)
    except InputError:
        raise
    except Exception as error:  # of many kinds: damaged weights, a configuration with values of other types
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"{folder} cannot be loaded ({reason}): expected a folder with a model and its tokenizer"
        ) from None
    torch.default_generator.manual_seed(0)
    untrained = owner.from_config(config) if owner is transformers.AutoModel else owner(config)
    return tokenizer, model.eval(), untrained.eval()


def hash_folder(folder: Path) -> str:
    """SHA-256 of all files in a folder: configuration, weights in any format, and the tokenizer's files."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.glob("*") if path.is_file())
    if not (folder / "config.json").exists():
        raise InputError(f"{folder} has no config.json: expected a folder that save_pretrained wrote")
    for path in files:
        digest.update(path.name.encode())
        with open(path, "rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
