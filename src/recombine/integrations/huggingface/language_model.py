"""Our language model as a model of `transformers`, and back.

    export_run("runs/language-...", "folder")                       # config.json, model.safetensors, the tokeniser's file
    register()
    model = AutoModelForCausalLM.from_pretrained("folder")          # needs no trust_remote_code
    model.model                                                     # the `LanguageModel` that was exported

The configuration holds the settings of `LanguageModelConfig`. Generation computes the whole sequence for each token; our own
`recombine generate` has the cache of each attention.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from recombine.foundation.errors import InputError
from recombine.foundation.files import read_file, write_whole
from recombine.models.language_model import LanguageModel, LanguageModelConfig
from recombine.tasks.language.tokenizers import ByteTokenizer
from recombine.training.benchmark import load_run

MODEL_TYPE = "recombine"
IGNORED = -100  # label of tokens without a loss, as everywhere in transformers


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
