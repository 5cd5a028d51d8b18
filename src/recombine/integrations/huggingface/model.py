"""A pretrained model, called as our own models are: predictions, latent codes, and changes of the codes.

Each prompt names the pair of tokens that a probe reads. Codes (b, h, q, k) are turned so that this query is the last query
and this key the last key, whatever the length of the prompt; the other tokens keep their order around them. After a change,
pairs that the model cannot see are 0 again.

What is predicted is the class of a prompt (see `huggingface_task`): from the logits of the first token of each answer, or, if
prompts have no answers, from the last hidden state of the query by a linear decoder of the labels that is fitted on the
`train` prompts. So ablations and swaps tell what the codes do to that state.

Our language model as a model of `transformers`, and back.

    export_run("runs/language-...", "folder")                       # config.json, model.safetensors, the tokeniser's file
    register()
    model = AutoModelForCausalLM.from_pretrained("folder")          # needs no trust_remote_code
    ours = read_language_model("folder")                            # the `LanguageModel` that was exported

The configuration holds the settings of `LanguageModelConfig`. Generation computes the whole sequence for each token; our own
`recombine generate` has the cache of each attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from recombine.attention.definition import CodeMap
from recombine.foundation.errors import InputError
from recombine.foundation.files import read_file, write_whole
from recombine.inside.collect import evaluating
from recombine.inside.decode import fit_logistic_path, standardise
from recombine.integrations.huggingface.codes import CodeRecorder, take_tokens, watching
from recombine.integrations.huggingface.prompts import Prompts
from recombine.models.base import Site
from recombine.models.language_model import LanguageModel, LanguageModelConfig
from recombine.tasks.language.tokenizers import ByteTokenizer
from recombine.training.benchmark import load_run

STRENGTH = 0.1  # of the decoder's regularisation; the middle one of those that the probe tries
CHUNK_SIZE = 250


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
        turn = _Turn(pairs, tokens.shape[1])
        call: dict[str, Any] = {"input_ids": tokens.clamp(min=0), "attention_mask": (tokens >= 0).long()}
        if not return_codes and code_maps is None:
            return self._predict(self.model(**call, output_hidden_states=True), pairs)
        maps = (
            None if code_maps is None else [None if code_map is None else turn.wrap(code_map) for code_map in code_maps]
        )
        recorder = CodeRecorder(maps)
        with watching(self.model, recorder):
            outputs = self.model(**call, output_hidden_states=True)
        predictions = self._predict(outputs, pairs)
        return (predictions, [turn.forward(codes) for codes in recorder.codes]) if return_codes else predictions

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
        batch = task.take("train", list(range(len(task.rows["train"]))), device)
        with evaluating(self):
            states = torch.cat([self(chunk) for chunk in batch.inputs.split(CHUNK_SIZE)]).float().cpu().numpy()
        labels = task.reading().label(batch).cpu().numpy()
        x = standardise(states, np.arange(len(states)))
        weights = next(fit_logistic_path(x, labels, [STRENGTH]))
        deviation = states.std(axis=0)
        scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
        slope = weights[:-1] * scale[:, None]
        bias = weights[-1] - states.mean(axis=0) @ slope
        modules = {module: column for column, module in enumerate(task.reading().modules)}
        members = np.zeros((len(modules), task.output_dim))
        for number, composition in enumerate(task.split.train + task.split.ood):
            for module in composition:
                members[modules[module], number] = 1
        readout = nn.Linear(states.shape[1], task.output_dim)
        with torch.no_grad():
            readout.weight.copy_(torch.tensor((slope @ members).T))
            readout.bias.copy_(torch.tensor(bias @ members))
        self.readout = readout.to(device)


class _Turn:
    """Turns codes so that the pair of each row comes last, and back."""

    def __init__(self, pairs: Int[Tensor, "b 2"], num_tokens: int) -> None:
        places = torch.arange(num_tokens, device=pairs.device)
        shift = pairs[:, :, None] + 1
        self.to_end = (places + shift) % num_tokens  # (b, 2, tokens)
        self.back = (places - shift) % num_tokens

    def forward(self, codes: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
        return _reorder(codes, self.to_end)

    def wrap(self, code_map: CodeMap) -> CodeMap:
        """A change of turned codes as one of the model's own."""

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


MODEL_TYPE = "recombine"
IGNORED = -100  # labels that do not count, as everywhere in transformers


class RecombineConfig(PreTrainedConfig):
    """Settings of a language model of Recombine."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        settings: dict[str, Any] | None = None,
        vocab_size: int = 259,
        max_position_embeddings: int = 256,
        **others: Any,
    ) -> None:
        self.settings = asdict(LanguageModelConfig(**({} if settings is None else settings)))
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.hidden_size, self.num_hidden_layers = self.settings["embedding_dim"], self.settings["num_layers"]
        self.num_attention_heads = self.settings["num_heads"]
        super().__init__(**{"use_cache": False, "tie_word_embeddings": False, **others})

    def build(self) -> LanguageModel:
        """The language model that the settings describe."""
        config = LanguageModelConfig(**self.settings)
        return LanguageModel(config, num_tokens=self.vocab_size, context_length=self.max_position_embeddings)


class RecombineForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel`, called as models of `transformers` are."""

    config_class = RecombineConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: RecombineConfig) -> None:
        super().__init__(config)
        self.model = config.build()
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """Nothing: layers draw their own weights."""

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        loaded = super().from_pretrained(*arguments, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        # transformers builds models without storage and leaves what is not saved, such as tables of buckets, undefined
        with torch.device("cpu"):
            fresh = dict(model.config.build().named_buffers())
        for name, buffer in model.model.named_buffers():
            buffer.copy_(fresh[name])
        return loaded

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        attention_mask: Int[Tensor, "b t"] | None = None,
        labels: Int[Tensor, "b t"] | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Logits, and with `labels` the mean loss of the next token. Padding must be on the right."""
        if attention_mask is not None and attention_mask.dim() == 2 and not attention_mask[:, 0].all():
            raise InputError("attention_mask hides the first token: expected padding on the right, or none")
        logits: Float[Tensor, "b t tokens"] = self.model(input_ids)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Any, *_: Any, **options: Any) -> Any:
        """The whole sequence, as there is no cache."""
        return {"input_ids": input_ids, "attention_mask": options.get("attention_mask")}

    def get_input_embeddings(self) -> Any:
        return self.model.embedding


def register_language_model() -> None:
    """Make `AutoConfig` and `AutoModelForCausalLM` know our language model. Calling it again changes nothing."""
    AutoConfig.register(MODEL_TYPE, RecombineConfig, exist_ok=True)
    AutoModelForCausalLM.register(RecombineConfig, RecombineForCausalLM, exist_ok=True)


def export_language_model(model: LanguageModel, folder: Path | str) -> RecombineForCausalLM:
    """Write a language model as `transformers` reads it, and return it as one of its models."""
    config = RecombineConfig(
        settings=asdict(model.config), vocab_size=model.num_tokens, max_position_embeddings=model.context_length
    )
    exported = RecombineForCausalLM(config)
    exported.model.load_state_dict(model.state_dict())
    exported.save_pretrained(folder)
    return exported.eval()


def export_run(path: Path | str, folder: Path | str) -> RecombineForCausalLM:
    """Write the language model of a run, and its tokeniser's own file if it has one."""
    run, _, model = load_run(path, "cpu")
    if not isinstance(model, LanguageModel):
        raise InputError(f"{path} holds a {type(model).__name__}: expected a run of `recombine train language`")
    exported = export_language_model(model, folder)
    content = read_file(run.path / "tokenizer")
    if content != ByteTokenizer.content:
        write_whole(Path(folder) / ("tokenizer.json" if content[:1] == b"{" else "tokenizer.model"), content)
    return exported


def read_language_model(folder: Path | str) -> LanguageModel:
    """The language model that was exported to a folder."""
    model: LanguageModel = RecombineForCausalLM.from_pretrained(folder, local_files_only=True).model
    return model
