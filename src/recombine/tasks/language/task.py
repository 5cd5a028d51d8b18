"""Language modelling with a compositional probe: predict the next token of text, of a grammar and of recalled pairs.

Training rows are windows of packed text; some are sentences of an artificial grammar, some in-context recall (see `rows`), and
in these only the answers are trained. Each kind is scored separately:

    test, ood    grammar with trained and with held-out pairs of verb and noun: seen and held-out compositions
    text         held-out documents, with intervals over documents
    recall       in-context recall

The name of the corpus, a hash of its content and its tokenizer, is part of the run.

Scales: `paper` is table A3 of Attention as a Hypernetwork (arXiv 2406.05816, section 5) with the other settings of NanoDO, its
code base: 512 tokens, no biases, Xavier-uniform weights, second moments with 0.98, 256 rows per step for about 10⁶ steps (131
billion tokens). `small` is the released WikiText experiment: 8 layers of width 128 with a relative position bias and SwiGLU;
its documents were cut and padded, here they are packed. `tiny` is for tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from recombine.compositions import Composition, CompositionSplit
from recombine.foundation.display import Table
from recombine.foundation.errors import InputError, check_choice, check_positive, require
from recombine.random import Stream
from recombine.tasks.base import Metric, Preset, Ratio, Scale, Task
from recombine.tasks.language.corpus import Corpus, load_corpus, prepare
from recombine.tasks.language.rows import (
    FIRST_DOCUMENT,
    FIRST_KEY,
    GRAMMAR,
    NUM_KEYS,
    RECALL,
    TEXT,
    TOKENS_PER_PAIR,
    WORDS,
    Rows,
    Sentences,
    split_commands,
)
from recombine.tasks.language.tokenizers import BYTES, SENTENCEPIECE, ByteTokenizer, Tokenizer
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sampling import Batch, SplitName, evaluation_batches

TASKS: dict[Scale, dict[str, Any]] = {
    "tiny": {"tokenizer": "bytes", "context_length": 128, "num_pairs": 4},
    "small": {"tokenizer": "sentencepiece", "vocabulary": 6144, "context_length": 256},
    "paper": {
        "tokenizer": "sentencepiece",
        "vocabulary": 32_000,
        "context_length": 512,
        "grammar_fraction": 0.01,
        "recall_fraction": 0.01,
    },
}
MODELS: dict[Scale, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "embedding_dim": 64, "kqv_dim": 64, "mlp_dim": 128, "num_heads": 4},
    "small": {
        "num_layers": 8,
        "embedding_dim": 128,
        "kqv_dim": 128,
        "mlp_dim": 256,
        "num_heads": 16,
        "feedforward": "swiglu",
        "position": "relative",
    },
    "paper": {
        "num_layers": 6,
        "embedding_dim": 512,
        "kqv_dim": 512,
        "mlp_dim": 2048,
        "num_heads": 8,
        "biases": False,
        "initialisation": "xavier",
    },
}
TRAINING: dict[Scale, dict[str, Any]] = {
    "tiny": {"steps": 200, "batch_size": 8, "warmup_steps": 20},
    "small": {"steps": 50_000, "batch_size": 128, "warmup_steps": 1_000},
    "paper": {
        "steps": 1_000_000,
        "batch_size": 256,
        "warmup_steps": 1_000,
        "beta2": 0.98,
        "precision": "bf16",
    },
}


IGNORED = -100
CERTAIN = 30.0  # logit of a token that a predictor is sure of
METRICS: dict[str, Metric] = {
    "accuracy": Metric(title="accuracy"),
    "token_accuracy": Metric(title="accuracy per token"),
    "loss": Metric(title="cross-entropy", higher_is_better=False),
    "bits_per_byte": Metric(title="bits per byte", higher_is_better=False),
}
SPLIT_TITLES = {"text": "held-out documents", "recall": "in-context recall"}
SPLIT_MEANINGS = {"text": "documents that are not trained", "recall": "values recalled from pairs earlier in the row"}
LARGEST = 1 << 26  # numbers in a prediction that is held at once


@dataclass(frozen=True, kw_only=True)
class LanguageSplit(CompositionSplit):
    """The commands of the grammar; for `text` the held-out documents, for `recall` the keys."""

    num_documents: int

    def compositions(self, split: str) -> tuple[Composition, ...]:
        if split == "text":
            return tuple((FIRST_DOCUMENT + number,) for number in range(self.num_documents))
        if split == "recall":
            return tuple((FIRST_KEY + number,) for number in range(NUM_KEYS))
        return super().compositions(split)


@dataclass(frozen=True, kw_only=True)
class Language(Task):
    """Text, with a grammar and in-context recall mixed into it."""

    name: ClassVar[str] = "language"
    summary: ClassVar[str] = (
        "predict the next token of text, mixed with a grammar whose verb-noun pairs are partly held out, and with recall"
    )
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood", "text", "recall")
    models: ClassVar[tuple[str, ...]] = ("language_model",)
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS
    column_info: ClassVar[Mapping[str, str]] = {
        "kind": "kind of the row: text, grammar or recall, by number",
        "scored": "whether each token is scored",
        "num_bytes": "length of each token in bytes",
    }
    requires_causal_model: ClassVar[bool] = True
    evaluation_instances: ClassVar[int] = 1_000
    training_evaluation_instances: ClassVar[int] = 100
    training_evaluations: ClassVar[int] = 20
    max_batches_at_once: ClassVar[int] = 16
    max_numbers_at_once: ClassVar[int] = 1 << 14

    text: tuple[str, ...] = ()
    """Files or folders of text: plain, JSON lines or Parquet, also .gz and .zst (default: the standard library of Python)."""
    dataset: str | None = None
    """Data set of Hugging Face, as NAME or NAME:CONFIG, read in streaming mode; instead of files."""
    num_documents: int | None = None
    """Maximum number of documents to take from the data set (default: all)."""
    tokenizer: str = "bytes"
    """bytes, sentencepiece (trained on the text), or a file: a SentencePiece .model or a tokenizer.json."""
    vocabulary: int = 4096
    """Number of tokens, for sentencepiece."""
    context_length: int = 256
    """Number of tokens of a row."""
    held_out_documents: float = 0.05
    """Fraction of the documents that are not trained."""
    grammar_fraction: float = 0.1
    """Fraction of the training rows that are sentences of the grammar."""
    recall_fraction: float = 0.1
    """Fraction of the training rows that are in-context recall."""
    held_out: float = 0.25
    """Fraction of the pairs of verb and noun that are held out."""
    num_pairs: int = 16
    """Number of pairs to recall in a row."""
    corpus: str | None = None
    """Name of the prepared corpus: a hash of its content. Filled in when a run starts."""

    def __post_init__(self) -> None:
        check_positive(vocabulary=self.vocabulary, context_length=self.context_length, num_pairs=self.num_pairs)
        require(self.num_pairs <= NUM_KEYS, "num_pairs", self.num_pairs, f"at most {NUM_KEYS}")
        shortest = TOKENS_PER_PAIR * self.num_pairs
        require(
            self.context_length >= shortest, "context_length", self.context_length, f"at least 4 num_pairs = {shortest}"
        )
        require(0 < self.held_out_documents < 1, "held_out_documents", self.held_out_documents, "between 0 and 1")
        for field in ("grammar_fraction", "recall_fraction"):
            require(0 <= getattr(self, field) <= 1, field, getattr(self, field), "a number from 0 to 1")
        total = self.grammar_fraction + self.recall_fraction
        require(total <= 1, "grammar_fraction + recall_fraction", total, "at most 1")
        # the name becomes part of a path, and may come from the configuration of a run that somebody else made
        hexadecimal = self.corpus is None or re.fullmatch("[0-9a-f]{1,64}", self.corpus) is not None
        require(hexadecimal, "corpus", self.corpus, "a hash in hexadecimal digits")
        if self.text and self.dataset is not None:
            raise InputError("text and dataset are both given: expected one of them")

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        model = cls.models[0] if model is None else model
        check_choice("model for task 'language'", model, cls.models)  # no other has sizes
        return Preset(task=cls(**TASKS[scale]), model=model, sizes=MODELS[scale], training=TRAINING[scale])

    # text

    prepared_settings = ("corpus",)

    def prepare(self) -> Language:
        """Prepare the corpus and name it; an error if the run was made from another one."""
        return self if self.corpus is not None else replace(self, corpus=self._find_corpus())

    def _find_corpus(self) -> str:
        settings = (self.tokenizer, self.vocabulary, self.held_out_documents)
        return prepare(self.text, *settings, dataset=self.dataset, num_documents=self.num_documents)

    @cached_property
    def tokens(self) -> Corpus:
        """The prepared text."""
        corpus = load_corpus(self.corpus) if self.corpus is not None else None
        if corpus is not None:
            return corpus
        name = self._find_corpus()
        if self.corpus not in (None, name):
            raise InputError(
                f"the text is now corpus {name}: expected {self.corpus}, which the run was trained on; "
                "the files, the version of Python or the tokenizer have changed"
            )
        corpus = load_corpus(name)
        assert corpus is not None
        return corpus

    @property
    def tokenizer_in_use(self) -> Tokenizer:
        return self.tokens.tokenizer

    def artifacts(self) -> Mapping[str, bytes]:
        return {"tokenizer": self.tokenizer_in_use.content}

    # sizes

    @cached_property
    def split(self) -> LanguageSplit:
        commands = split_commands(self.held_out, self.seed)
        documents = self.tokens.num_documents["held_out"]
        return LanguageSplit(train=commands.train, ood=commands.ood, redraws=commands.redraws, num_documents=documents)

    @property
    def input_dim(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self.context_length

    @property
    def output_dim(self) -> int:
        return self.vocabulary_size

    @cached_property
    def vocabulary_size(self) -> int:
        """Known from the settings where possible, so that a trained model can be used without its text."""
        if self.tokenizer == BYTES:
            return ByteTokenizer.size
        return self.vocabulary if self.tokenizer == SENTENCEPIECE else self.tokenizer_in_use.size

    @property
    def max_rows_at_once(self) -> int:
        return max(1, min(1_000, LARGEST // (self.context_length * self.vocabulary_size)))

    # batches

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Rows of the split; `info` says which targets are scored, their bytes of text, and the kind of the row."""
        on_cpu = Stream(rows=range(0))
        on_cpu.parts = stream.parts  # the integers are the same on every device, and the text is in memory
        return self.rows.make(split, on_cpu).to(stream.device)

    @cached_property
    def rows(self) -> Rows:
        return Rows(self)

    # scores

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """The mean cross-entropy of the scored tokens, in nats."""
        labels = batch.targets.masked_fill(~batch.info["scored"], IGNORED)
        return functional.cross_entropy(predictions.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def loss_weight(self, batch: Batch) -> Tensor:
        return batch.info["scored"].sum()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """The whole answer, in the grammar; bits per byte, in text; recalled values, in recall. Rows must be of one kind."""
        scored = batch.info["scored"]
        count = scored.sum(dim=1).double()
        loss = measure_token_losses(predictions, batch).double().sum(dim=1)
        right = (predictions.argmax(dim=-1) == batch.targets) & scored
        tokens = Ratio(right.sum(dim=1).double(), count)
        if (batch.info["kind"] == GRAMMAR).all():
            whole = (right | ~scored).all(dim=1).double()
            return {
                "accuracy": Ratio(whole, torch.ones_like(whole)),
                "token_accuracy": tokens,
                "loss": Ratio(loss, count),
            }
        if (batch.info["kind"] == RECALL).all():
            return {"accuracy": tokens, "loss": Ratio(loss, count)}
        num_bytes = batch.info["num_bytes"].masked_fill(~scored, 0).sum(dim=1).double()
        return {
            "bits_per_byte": Ratio(loss / math.log(2), num_bytes),
            "loss": Ratio(loss, count),
            "accuracy": tokens,
        }

    def chance(self, batch: Batch) -> Tensor:
        """The frequencies of tokens: at each place of an answer, in the text, or of the values to recall."""
        return self.rows.frequencies(batch)

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Tensor:
        """The targets. In the grammar and in recall the input determines them; in text they are an upper bound."""
        shape = (*batch.targets.shape, self.vocabulary_size)
        zeros = torch.zeros(shape, dtype=torch.float32, device=batch.targets.device)
        return zeros.scatter_(-1, batch.targets[..., None], CERTAIN)

    def evaluation_tables(
        self, predict: Callable[[Tensor], Tensor], num_instances: int, device: torch.device | str
    ) -> list[Table]:
        """Cross-entropy and perplexity of held-out text by position in the row."""
        batches = evaluation_batches(self, "text", num_instances, device)
        return [tabulate_positions(predict, batches, self.context_length)]

    def split_title(self, split: SplitName) -> str:
        return SPLIT_TITLES.get(split) or super().split_title(split)

    def split_meaning(self, split: SplitName) -> str:
        return SPLIT_MEANINGS.get(split) or super().split_meaning(split)

    # words

    def reading(self) -> Reading:
        return LanguageReading(self)

    def describe(self, composition: Composition) -> str:
        return " ".join(map(_name_module, composition))

    def render(self, batch: Batch, row: int) -> str:
        """The text of a row, and the answer where only that is scored."""
        decode = self.tokenizer_in_use.decode
        if batch.info["kind"][row] == RECALL:
            return " ".join(map(str, batch.inputs[row].tolist()))
        text = decode(batch.inputs[row].tolist())
        if batch.info["kind"][row] == TEXT:
            return text
        return f"{text}\nanswer: {decode(batch.targets[row][batch.info['scored'][row]].tolist()).strip()}"


def _name_module(module: int) -> str:
    if module >= FIRST_DOCUMENT:
        return f"document {module - FIRST_DOCUMENT}"
    return WORDS[module] if module < len(WORDS) else f"key {module - FIRST_KEY}"


def measure_token_losses(predictions: Float[Tensor, "b t vocabulary"], batch: Batch) -> Float[Tensor, "b t"]:
    """The cross-entropy of each token in nats; 0 where it is not scored."""
    losses = functional.cross_entropy(predictions.mT, batch.targets, reduction="none")
    return losses.masked_fill(~batch.info["scored"], 0.0)


def tabulate_positions(predict: Callable[[Tensor], Tensor], batches: Iterable[Batch], length: int) -> Table:
    """Cross-entropy, perplexity and number of tokens by position, in groups by powers of two, then of all."""
    total, count = (torch.zeros(length, dtype=torch.float64) for _ in range(2))
    with torch.inference_mode():
        for batch in batches:
            total += measure_token_losses(predict(batch.inputs).float(), batch).double().sum(dim=0).cpu()
            count += batch.info["scored"].double().sum(dim=0).cpu()
    starts = [0, *(2**power for power in range(length.bit_length()) if 2**power < length)]
    groups = [*zip(starts, [*starts[1:], length], strict=True), (0, length)]
    rows = []
    for first, last in groups:
        num_tokens = count[first:last].sum().item()
        if num_tokens:
            loss = total[first:last].sum().item() / num_tokens
            rows.append((f"{first + 1} to {last}", loss, math.exp(loss), int(num_tokens)))
    return Table(
        title="Held-out text by position",
        columns=("positions", "cross-entropy", "perplexity", "tokens"),
        rows=tuple(rows),
    )


class LanguageReading(Reading):
    """Rows of the grammar, cut where answers diverge; their target is the first token that distinguishes answers."""

    task: Language
    version = 2
    instances = "commands of the grammar, up to where their answers begin to differ"
    codes = "the last token attending to the command"
    labels = "the words of the command"

    @property
    def sentences(self) -> Sentences:
        """All commands with their answers."""
        return self.task.rows.sentences

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        """The rows that are evaluated, without the rest of their answers; all are cut to the same length."""
        return map(self._cut, super().batches(split, num_instances, device))

    def _cut(self, batch: Batch) -> Batch:
        sentences = self.sentences
        rest = int((sentences.ends - sentences.answers).max()) - sentences.num_shared - 1
        length = batch.inputs.shape[1] - rest
        needed = int(sentences.answers.max()) + sentences.num_shared
        if length < needed:
            raise InputError(
                f"context_length is {self.task.context_length}: expected at least {needed + rest}, the longest command with "
                "its answer, to read codes before the answer"
            )
        last = batch.info["scored"].int().argmax(dim=1) + sentences.num_shared
        places = last[:, None] + torch.arange(1 - length, 1, device=last.device)
        columns = {name: batch.info[name].gather(1, places) for name in ("scored", "num_bytes")}
        columns["scored"] = torch.zeros_like(columns["scored"]).index_fill_(1, last.new_tensor([length - 1]), True)
        inputs, targets = batch.inputs.gather(1, places), batch.targets.gather(1, places)
        return replace(batch, inputs=inputs, targets=targets, info={**batch.info, **columns})

    @property
    def keys(self) -> tuple[int, ...]:
        """As many as the shortest command has tokens, so that all are part of the command, with what all answers share."""
        return tuple(range(-int(self.sentences.answers.min()) - self.sentences.num_shared, 0))

    @property
    def swap(self) -> Reading:
        return self

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        """The token that distinguishes answers."""
        return self.target(batch)

    def read_answer(self, predictions: Tensor) -> Int[Tensor, " rows"]:
        """The token that the model predicts there."""
        return predictions[:, -1].argmax(dim=-1)

    def counterfactual(
        self, batch: Batch, partner: Int[Tensor, " rows"], answers: Shaped[Tensor, " rows *outputs"]
    ) -> Counterfactual:
        own = self.target(batch)
        return Counterfactual(own=own, other=own[partner], distinct=own[partner] != own)
