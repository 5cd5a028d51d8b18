"""Our language model as a model of `transformers`, and back.

    export_run("runs/language-...", "folder")                       # config.json, model.safetensors, the tokeniser's file
    register()
    model = AutoModelForCausalLM.from_pretrained("folder")          # needs no trust_remote_code
    model.model                                                     # the `LanguageModel` that was exported

The configuration holds the settings of `LanguageModelConfig`. Positions are relative (rotary, or a bias per distance), so padding
may be on either side and is only masked. The cache is that of `transformers`, with all keys and values.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from recombine.attention.cache import AttentionCache
from recombine.attention.dispatch import attend
from recombine.attention.hyla import MASKED_SCORE
from recombine.foundation.errors import InputError
from recombine.foundation.files import read_file, write_output
from recombine.models.language_model import LanguageModel, LanguageModelConfig
from recombine.tasks.language.tokenizers import ByteTokenizer, Tokenizer, load_tokenizer
from recombine.training.benchmark import load_run

MODEL_TYPE = "recombine"


class RecombineConfig(PreTrainedConfig):
    """Settings of a language model of Recombine."""

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ("past_key_values",)
    use_cache = True

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
        super().__init__(**{"tie_word_embeddings": False, **others})

    def build(self) -> LanguageModel:
        """The language model that the settings describe."""
        sizes = {
            "embedding_dim": self.hidden_size,
            "num_layers": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
        }
        config = LanguageModelConfig(**{**self.settings, **sizes})
        return LanguageModel(config, num_tokens=self.vocab_size, context_length=self.max_position_embeddings)


class RecombineForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel`, called as models of `transformers` are."""

    config_class = RecombineConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _no_split_modules = ["Block"]  # noqa: RUF012

    def __init__(self, config: RecombineConfig) -> None:
        super().__init__(config)
        self.model = config.build()
        self.post_init()

    def initialize_weights(self) -> None:
        """Draw what was not loaded, in one call for the whole model."""
        self._initialize_weights(self)

    def _init_weights(self, module: Any) -> None:
        """Weights as `LanguageModel` draws them, and its tables, which are not saved; what was loaded stays as it is."""
        if isinstance(module, nn.Embedding):  # with new tokens
            initialization.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif module is self:
            with torch.device("cpu"):
                drawn = self.config.build()
            tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
            for name, tensor in (*drawn.named_parameters(), *drawn.named_buffers()):
                initialization.copy_(tensors[name], tensor)

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "b t"] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "b t embedding"] | None = None,
        labels: Int[Tensor, "b t"] | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and with `labels` the mean loss of the next token; the attentions are the latent codes."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("expected either input_ids or inputs_embeds")
        x: Any = inputs_embeds if input_ids is None else self.model.embedding(input_ids)
        config: Any = self.config
        use_cache = config.use_cache and not self.training if use_cache is None else use_cache
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        first = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        if first + x.shape[1] > config.max_position_embeddings:
            warnings.warn(f"the model was made for {config.max_position_embeddings} tokens: got more", stacklevel=2)
        mask = read_mask(attention_mask, first + x.shape[1])
        check_positions(kwargs.get("position_ids"), mask)
        states, codes = [x], []
        for number, block in enumerate(self.model.blocks):
            cache = None if past_key_values is None else LayerCache(past_key_values, number)
            x, code = block(x, mask=mask, cache=cache, return_codes=output_attentions)
            states.append(x)
            codes.append(code)
        _, states[-1] = self.model.output_norm(x)
        read = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.read(states[-1][:, read])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(codes) if output_attentions else None,
        )

    def get_input_embeddings(self) -> Any:
        return self.model.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.model.embedding, self.model.num_tokens = value, value.num_embeddings


class LayerCache(AttentionCache):
    """One layer of a cache of `transformers`."""

    def __init__(self, cache: Cache, number: int) -> None:
        super().__init__()
        self.length = int(cache.get_seq_length(number))
        self._cache, self._number = cache, number

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        self.length += k.shape[1]
        cached = self._cache.update(k.transpose(1, 2), v.transpose(1, 2), self._number)
        # a static cache has more keys than there are tokens
        k, v = (tensor.transpose(1, 2)[:, : self.length] for tensor in cached)
        return attend(q, k, v, **options)


def read_mask(attention_mask: Tensor | None, num_keys: int) -> Bool[Tensor, "*pairs"] | None:
    """A mask of tokens or of pairs, True where a query may attend; None if it hides nothing.

    A float mask of pairs is added to scores elsewhere: 0 where a query may attend, and very low where it may not.
    """
    if attention_mask is None:
        return None
    is_of_pairs, is_float = attention_mask.dim() == 4, attention_mask.is_floating_point()
    mask = attention_mask == 0 if is_of_pairs and is_float else attention_mask.bool()
    is_known = attention_mask.dim() == 2 or (is_of_pairs and bool((mask | (attention_mask <= MASKED_SCORE)).all()))
    if attention_mask.shape[-1] < num_keys or not (is_known or (is_of_pairs and not is_float)):
        raise InputError(
            f"attention_mask is {attention_mask.dtype} {tuple(attention_mask.shape)}: expected (batch, {num_keys}), 0 for "
            f"padding, or (batch, 1, queries, {num_keys}), True or 0 where a query may attend and False or -inf elsewhere"
        )
    mask = mask[..., :num_keys]
    if not torch.compiler.is_compiling() and mask.all():
        return None
    return mask if is_of_pairs else mask[:, None, None, :]


def check_positions(positions: Int[Tensor, "#b t"] | None, mask: Bool[Tensor, "*pairs"] | None) -> None:
    """Require positions that follow one another, as this model knows distances only."""
    if positions is None:
        return
    index = torch.arange(positions.shape[1], device=positions.device)
    seen = (torch.ones_like(positions) if mask is None else mask[:, 0, -1, -len(index) :]).bool()
    offsets = (positions - index).expand(seen.shape)
    last_seen = (seen * index).argmax(dim=1, keepdim=True)
    if ((offsets != offsets.gather(1, last_seen)) & seen).any():
        raise InputError("position_ids have gaps: expected consecutive positions, as this model knows distances only")


def register_language_model() -> None:
    """Make `AutoConfig` and `AutoModelForCausalLM` know our language model. Calling it again changes nothing."""
    AutoConfig.register(MODEL_TYPE, RecombineConfig, exist_ok=True)
    AutoModelForCausalLM.register(RecombineConfig, RecombineForCausalLM, exist_ok=True)


def export_language_model(
    model: LanguageModel, folder: Path | str, tokenizer: Tokenizer | None = None
) -> RecombineForCausalLM:
    """Write a language model as `transformers` reads it, and return it as one of its models."""
    ends = ("bos", "eos", "pad") if tokenizer is not None else ()
    config = RecombineConfig(
        settings=asdict(model.config),
        vocab_size=model.num_tokens,
        max_position_embeddings=model.context_length,
        **{f"{end}_token_id": getattr(tokenizer, end) for end in ends},
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
    content = read_file(run.path / "tokenizer")
    exported = export_language_model(model, folder, load_tokenizer(content, model.num_tokens))
    if content != ByteTokenizer.content:
        write_output(Path(folder) / ("tokenizer.json" if content[:1] == b"{" else "tokenizer.model"), content)
    return exported
