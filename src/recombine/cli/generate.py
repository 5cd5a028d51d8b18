"""recombine generate RUN: continue a prompt with a trained language model, printed as it is generated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from recombine.cli.flags import OneRunOptions
from recombine.cli.main import parse
from recombine.foundation.errors import InputError, escape_controls
from recombine.foundation.files import read_file
from recombine.models.language_model import LanguageModel, generate
from recombine.tasks.language.tokenizers import Tokenizer, load_tokenizer
from recombine.training.benchmark import load_run

UNFINISHED = "\ufffd"  # what a character looks like before its last byte is there


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(OneRunOptions):
    """Continue a text with a trained language model."""

    examples = (
        'recombine generate runs/language-hyla-0123456789ab --prompt "def main("',
        "recombine generate runs/language-hyla-0123456789ab --temperature 0 --num-tokens 50",
    )

    prompt: str = ""
    """Text to continue (default: the beginning of a document)."""
    num_tokens: int = 200
    """Maximum number of tokens to generate."""
    temperature: float = 0.8
    """Below 1 prefers likely tokens; 0 always takes the most likely one."""
    top_p: float = 0.95
    """Total probability of the tokens that are drawn from, the most likely first."""
    seed: int = 0
    """Random seed."""


def run(argv: list[str]) -> None:
    options = parse(GenerateOptions, argv, prog="generate")
    directory, config, model = load_run(options.run, options.device, code=options.code)
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"{options.run} holds a model of kind {config.model.kind!r}: expected a run of task 'language'"
        )
    tokenizer = load_tokenizer(read_file(directory.path / "tokenizer"), model.num_tokens)
    prompt = [tokenizer.bos, *tokenizer.encode(options.prompt)] if options.prompt else [tokenizer.bos]
    started = time.perf_counter()
    tokens = generate(
        model,
        prompt,
        stop=tokenizer.eos,
        **options.select("num_tokens", "temperature", "top_p", "seed"),
    )
    if options.json:
        generated = list(tokens)
        text = "".join(decode_stream(generated, tokenizer, prompt))
        seconds = round(time.perf_counter() - started, 3)
        value = {"prompt": options.prompt, "text": text, "tokens": generated, "seconds": seconds}
        options.show(value)
        return
    print(options.prompt, end="", flush=True)
    for piece in decode_stream(tokens, tokenizer, prompt):
        print(show_text(piece), end="", flush=True)
    print()


def show_text(text: str) -> str:
    """Text with its line ends and tabs; other control characters are written out, since a model may produce any."""
    return escape_controls(text, keep="\n\t")


def decode_stream(tokens: Iterable[int], tokenizer: Tokenizer, prompt: Sequence[int]) -> Iterator[str]:
    """The text of tokens as they come; characters of several tokens are held back until they are whole.

    Tokens are decoded behind the prompt, since many tokenizers drop the space before a first word.
    """
    seen = list(prompt)
    shown = tokenizer.decode(seen)
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen)
        if not text.endswith(UNFINISHED):
            yield text[len(shown) :]
            shown = text
    yield tokenizer.decode(seen)[len(shown) :]
