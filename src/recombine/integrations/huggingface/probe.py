"""Probe a pretrained model on prompts: decodability, structure, similarity, ablation and swap, as for our own runs.

The result is cached in a run directory, `probe.json` and `probe.npz`, so that `recombine report` shows it. It is used again
only if the prompts, the weights and the arguments are the same.

`PretrainedModel` is called as our own models are: predictions, latent codes, and changes of the codes. Each prompt names the
pair of tokens that a probe reads. Codes (b, h, q, k) are rotated so that this query is the last query and this key the last
key, whatever the length of the prompt; the other tokens keep their order around them. After a change, pairs that the model
cannot see are 0 again.

The prediction is the class of a prompt: from the logits of the first token of each answer, or, if prompts have no answers, from
the last hidden state of the query by a linear decoder of the labels that is fitted on the `train` prompts. Ablations and swaps
then show what the codes do to that state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from recombine.attention.definition import CodeMap
from recombine.attention.dispatch import attend
from recombine.foundation.errors import InputError
from recombine.inside.collect import CHUNK_SIZE
from recombine.inside.decode import fit_logistic_path, standardise
from recombine.inside.probe import NUM_INSTANCES, Say, probe_model
from recombine.inside.result import PROBE, ProbeResult
from recombine.integrations.huggingface.attention import Call, import_interfaces, watching
from recombine.integrations.huggingface.codes import take_tokens
from recombine.integrations.huggingface.prompts import Prompts, read_prompts
from recombine.models.base import Site
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json
from recombine.training.score import evaluating
from recombine.training.session import resolve_device

STRENGTH = 0.1  # of the readout's regularisation; the middle one of those that the probe tries
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
    _ = task.token_rows  # invalid prompts are refused before anything is written
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


class PretrainedModel(nn.Module):
    """A `transformers` model on prompts."""

    def __init__(self, model: nn.Module, task: Prompts) -> None:
        super().__init__()
        self.model = model
        num_layers = int(model.config.num_hidden_layers)  # type: ignore[union-attr, arg-type]
        # what probes record: the residual stream at the query, behind each block
        self.residual = nn.ModuleList([nn.Identity() for _ in range(num_layers)])
        self.probe_sites = tuple(Site(f"residual.{layer}", f"residual.{layer}") for layer in range(num_layers))
        self.readout: nn.Linear | None = None
        self.answers: Tensor | None = find_answers(task) if task.file.has_answers else None

    def forward(
        self,
        inputs: Int[Tensor, "b columns"],
        *,
        return_codes: bool = False,
        code_maps: Sequence[CodeMap | None] | None = None,
    ) -> Tensor | tuple[Tensor, list[Float[Tensor, "b h q k"]]]:
        """Scores of the classes (b, classes), and with `return_codes` the codes of each layer."""
        pairs, tokens = inputs[:, :2], inputs[:, 2:]
        rotation = _Rotation(pairs, tokens.shape[1])
        codes: list[Tensor] = []

        def handle(call: Call) -> Tensor:
            code_map = None if code_maps is None else code_maps[len(codes)]
            wrapped = None if code_map is None else rotation.wrap(code_map)
            out, found = attend(call.q, call.k, call.v, code_map=wrapped, return_codes=True, **call.options)
            assert found is not None
            codes.append(found)
            return out

        with watching(self.model, handle) if return_codes or code_maps is not None else nullcontext():
            outputs = self.model(
                input_ids=tokens.clamp(min=0), attention_mask=(tokens >= 0).long(), output_hidden_states=True
            )
        predictions = self._predict(outputs, pairs)
        return (predictions, [rotation.forward(found) for found in codes]) if return_codes else predictions

    def _predict(self, outputs: Any, pairs: Int[Tensor, "b 2"]) -> Float[Tensor, "b classes"]:
        query = pairs[:, :1]
        states = [take_tokens(state, query)[:, 0] for state in outputs.hidden_states[1:]]
        for site, state in zip(self.residual, states, strict=True):
            site(state)
        if self.answers is not None:
            return take_tokens(outputs.logits, query)[:, 0, self.answers.to(query.device)]
        return states[-1] if self.readout is None else self.readout(states[-1])

    def fit_readout(self, task: Prompts, device: torch.device | str = "cpu") -> None:
        """Fit the decoder of the labels, and add up its scores over the labels of each composition."""
        if self.answers is not None:
            return
        batch = task.take("train", range(len(task.rows["train"])), device)
        with evaluating(self):
            states = torch.cat([self(chunk) for chunk in batch.inputs.split(CHUNK_SIZE)]).float().cpu().numpy()
        labels = task.reading().label(batch).cpu().numpy()
        x = standardise(states, np.arange(len(states)))
        weights = next(fit_logistic_path(x, labels, [STRENGTH]))
        deviation = states.std(axis=0)
        scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
        slope = weights[:-1] * scale[:, None]
        bias = weights[-1] - states.mean(axis=0) @ slope
        modules = task.reading().modules
        compositions = task.split.train + task.split.ood
        members = np.array([[module in composition for composition in compositions] for module in modules], float)
        readout = nn.Linear(states.shape[1], task.output_dim)
        with torch.no_grad():
            readout.weight.copy_(torch.tensor((slope @ members).T))
            readout.bias.copy_(torch.tensor(bias @ members))
        self.readout = readout.to(device)


class _Rotation:
    """Rotates codes so that the pair of each row comes last, and back."""

    def __init__(self, pairs: Int[Tensor, "b 2"], num_tokens: int) -> None:
        places = torch.arange(num_tokens, device=pairs.device)
        shift = pairs[:, :, None] + 1
        self.to_end = (places + shift) % num_tokens  # (b, 2, tokens)
        self.back = (places - shift) % num_tokens

    def forward(self, codes: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
        return _reorder(codes, self.to_end)

    def wrap(self, code_map: CodeMap) -> CodeMap:
        """A map of rotated codes as one of the model's own codes."""

        def change(codes: Tensor) -> Tensor:
            changed = _reorder(code_map(_reorder(codes, self.to_end)), self.back)
            # a pair that is masked has code 0, and no other has exactly that
            return changed.masked_fill(codes == 0, 0)

        return change


def _reorder(codes: Float[Tensor, "b h q k"], order: Int[Tensor, "b 2 tokens"]) -> Float[Tensor, "b h q k"]:
    codes = codes.gather(2, order[:, 0, None, :, None].expand_as(codes))
    return codes.gather(3, order[:, 1, None, None, :].expand_as(codes))


def find_answers(task: Prompts) -> Int[Tensor, " classes"]:
    """The first token of each answer; raises if two answers begin alike."""
    tokens = {answer: task.tokenizer(answer, add_special_tokens=False)["input_ids"][:1] for answer in task.classes}
    for answer, first in tokens.items():
        if not first:
            raise InputError(f"answer {answer!r} has no tokens: expected answers that the tokenizer knows")
        alike = [other for other in tokens if other != answer and tokens[other] == first]
        if alike:
            raise InputError(
                f"answers {answer!r} and {alike[0]!r} begin with the same token: expected answers that "
                "differ in their first token"
            )
    return torch.tensor([first[0] for first in tokens.values()])
