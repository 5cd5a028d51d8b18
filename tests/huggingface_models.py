"""Tiny models of `transformers`, built from configurations."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

VOCABULARY, WIDTH, HEADS, LAYERS = 29, 16, 4, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 4}
WINDOW = 4
WORDS = ["<pad>", "?", "a", "b", "c", "x", "y", "z", "the", "and", "of", "so", "yes", "no", "yet", "not"]

CONFIGS = {
    "llama": lambda **more: LlamaConfig(**{**GROUPED, **more}),
    "qwen3": lambda **more: Qwen3Config(**{**GROUPED, **more}),
    "gemma": lambda **more: GemmaConfig(**{**GROUPED, **more}),
    "gemma3": lambda **more: Gemma3TextConfig(  # a layer with a sliding window, and one without
        **{**GROUPED, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"], **more}
    ),
    "mistral": lambda **more: MistralConfig(**{**GROUPED, "sliding_window": WINDOW, **more}),
    "gpt_neox": lambda **more: GPTNeoXConfig(**{**SIZES, **more}),
    "gpt2": lambda **more: GPT2Config(
        **{
            "vocab_size": VOCABULARY,
            "n_positions": 64,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            **more,
        }
    ),
}


def make_tokenizer():
    """A tokenizer of single words."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="?")


def build_model(kind, attention="hyla", seed=0, **more):
    """A model whose weights are large enough for attention to matter."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](**more), attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
            elif "norm" not in name and "ln_" not in name:
                parameter.normal_(std=0.1)
    return model.eval()


def draw_tokens(rows=2, length=9, seed=1):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
