"""Other people's tests of attention and of language models, run on ours: `make foreign` writes docs/compatibility.md.

    python benchmarks/foreign.py [--suite NAME ...] [--page docs/compatibility.md] [--cache build/foreign]

    torch           for every module with attention in `torch.testing._internal.common_modules`: the inputs and reference functions
                    there, gradients of first and second order, and the values of torch's own module
    transformers    `ModelTesterMixin`, `TrainingTesterMixin` and `ConfigTester` of the source package of `transformers`
    fla             the naive recurrences of `fla-core`, against linear attention by every kernel

Their assertions are run as they are. Neither models nor data are downloaded: pip fetches the source package of the installed version of
`transformers`, `fla-core`, and `parameterized`, `einops` and `expecttest`, which they import, from PyPI into the cache, once. What these
packages do not hold is listed in `MISSING`.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import itertools
import subprocess
import sys
import tarfile
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recombine.attention import linear
from recombine.attention.dispatch import attend, use_kernel
from recombine.attention.hyla import convert
from recombine.attention.layer import ATTENTIONS

ROOT = Path(__file__).parent.parent
PACKAGES = ("fla-core==0.6.0", "parameterized==0.9.0", "einops==0.8.1", "expecttest==0.3.0")
MISSING = {
    "torch": "`TestModule` and `test_transformers.py` are not in the wheel",
    "transformers": "`GenerationTesterMixin`, `CausalLMModelTest` and `ExportTesterMixin` are not in the source package",
    "fla": "its tests need a GPU and are not in the package",
    "inspect_ai": "no tests of intervals are in the source package (0.3.285)",
}
BEGIN, END = "<!-- foreign: begin -->", "<!-- foreign: end -->"


@dataclass(frozen=True)
class Case:
    """One test: passed, failed with the error, or excluded with the reason."""

    suite: str
    name: str
    outcome: str
    reason: str = ""


def attempt(suite: str, name: str, test: Callable[..., object], *arguments: Any) -> Case:
    """Run one test."""
    try:
        test(*arguments)
    except Exception as error:
        return Case(suite, name, "failed", f"{type(error).__name__}: {error}")
    return Case(suite, name, "passed")


def install(cache: Path) -> Path:
    """Packages that are only needed here, in a folder of their own."""
    folder = cache / "-".join(package.replace("==", "_") for package in PACKAGES)
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, *PACKAGES], check=True)
    sys.path.append(str(folder))
    return folder


# ------------------------------------------------------------------------------------------------------------- torch


def run_torch(cache: Path) -> Iterator[Case]:
    install(cache)
    from torch.testing._internal import common_modules

    infos = {info.module_cls.__name__: info for info in common_modules.module_db}
    containers = ("TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder", "Transformer")
    cases = [("MultiheadAttention", attention) for attention in ATTENTIONS]
    for name, attention in [*cases, *itertools.product(containers, ("softmax", "hyla"))]:
        suite, info = f"torch, {attention}", infos[name]
        yield attempt(suite, f"{name}: reference functions", check_references, info, attention)
        yield attempt(suite, f"{name}: gradients", check_gradients, info, attention, torch.autograd.gradcheck, 8)
        yield attempt(
            suite, f"{name}: second derivatives", check_gradients, info, attention, torch.autograd.gradgradcheck, 16
        )
        if attention == "softmax":
            yield attempt(suite, f"{name}: values of torch", check_values, info)


def build_samples(info: Any, dtype: torch.dtype, training: bool, requires_grad: bool = False) -> Iterator[tuple]:
    """Torch's module with random weights, and an input with its reference function."""
    samples = info.module_inputs_func(info, "cpu", dtype, requires_grad, training)
    for sample in samples:
        torch.manual_seed(0)
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        yield module.to(dtype).train(training), sample


def check_references(info: Any, attention: str) -> None:
    from torch.testing._internal.common_utils import TestCase, freeze_rng_state

    for dtype, training in itertools.product((torch.float32, torch.float64), (True, False)):
        for module, sample in build_samples(info, dtype, training):
            module = convert(module, attention, output_scale="none")
            call, again = copy.deepcopy(sample.forward_input), copy.deepcopy(sample.forward_input)
            with freeze_rng_state():
                outputs = module(*call.args, **call.kwargs)
            if sample.reference_fn is not None:
                with freeze_rng_state():
                    expected = sample.reference_fn(module, *again.args, **again.kwargs)
                TestCase().assertEqual(outputs, expected)  # noqa: PT009


def check_values(info: Any) -> None:
    for dtype, training in itertools.product((torch.float32, torch.float64), (True, False)):
        for module, sample in build_samples(info, dtype, training):
            call = sample.forward_input
            torch.manual_seed(0)
            expected = module(*call.args, **call.kwargs)
            torch.manual_seed(0)
            outputs = convert(copy.deepcopy(module), "softmax")(*call.args, **call.kwargs)
            torch.testing.assert_close(outputs, expected)


def check_gradients(info: Any, attention: str, check: Callable[..., bool], step: int) -> None:
    """By finite differences, of every `step`-th input."""
    samples = build_samples(info, torch.float64, training=False, requires_grad=True)
    for module, sample in itertools.islice(samples, 0, None, step):
        module, call = convert(module, attention, output_scale="none"), sample.forward_input
        names, weights = zip(*module.named_parameters(), strict=True)
        inputs = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor) and x.requires_grad]

        def run(*tensors: Tensor, module: nn.Module = module, call: Any = call, names: Any = names) -> Any:
            outputs = torch.func.functional_call(
                module, dict(zip(names, tensors, strict=False)), call.args, call.kwargs
            )
            return [out for out in outputs if out is not None] if isinstance(outputs, tuple) else outputs

        assert check(run, (*weights, *inputs), fast_mode=True, check_undefined_grad=False)


# ------------------------------------------------------------------------------------------------------ transformers

EXCLUDED = {  # by parts of names, besides what the suites skip themselves
    "Llama with HYLA: test_retain_grad": "it sets config.output_attentions, which transformers allows with its eager attention only",
    "Llama with HYLA: test_sdpa_can_dispatch_non_composite": "it asks for softmax attention, and the model is saved with HYLA",
    "_image_": "about images",
    "_audio_": "about sound",
    "_video_": "about videos",
    "_text_features_": "about models of text and images",
    "generation_tester_mixin_inheritance": "GenerationTesterMixin is not in the source package",
}


def run_transformers(cache: Path) -> Iterator[Case]:
    tests = load_transformers_tests(cache)
    for suite, tester in build_model_testers():
        content = {
            "model_tester": tester,
            "all_model_classes": tester.all_model_classes,
            "test_can_init_all_missing_weights_before_2023": True,
        }
        mixins = (tests.ModelTesterMixin, *([tests.TrainingTesterMixin] if "hyla" in suite else []))
        cases: Any = type("Cases", (*mixins, unittest.TestCase), content)
        for name in unittest.defaultTestLoader.getTestCaseNames(cases):
            reason = next((reason for part, reason in EXCLUDED.items() if part in f"{suite}: {name}"), None)
            if reason is not None:
                yield Case(suite, name, "excluded", reason)
                continue
            result = unittest.TestResult()
            cases(name).run(result)
            wrong = [*result.failures, *result.errors]
            if result.skipped:
                yield Case(suite, name, "excluded", result.skipped[0][1])
            else:
                yield Case(suite, name, "failed" if wrong else "passed", wrong[0][1].strip() if wrong else "")
        checker: Any = tests.ConfigTester(unittest.TestCase(), config_class=tester.config_class, **tester.settings)
        for name in (name for name in dir(checker) if name.startswith(("create_and_test_config", "check_config_can"))):
            yield attempt(suite, f"ConfigTester.{name}", getattr(checker, name))


def load_transformers_tests(cache: Path) -> Any:
    """The mixins of the source package; modules that it lacks are empty."""
    import transformers

    version = transformers.__version__
    source = cache / f"transformers-{version}"
    if not source.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            ":all:",
        ]
        subprocess.run([*pip, "--dest", str(cache), f"transformers=={version}"], check=True)
        with tarfile.open(f"{source}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
        (source / "tests" / "__init__.py").touch()
    install(cache)
    modules = {
        "": {"__path__": [str(source / "tests")]},
        ".exporters": {},
        ".exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
        ".generation": {},
        ".generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
        ".utils": {},
        ".utils.test_configuration_utils": {"config_common_kwargs": {}},
    }
    for name, content in modules.items():
        module = sys.modules[f"transformers_tests{name}"] = types.ModuleType(f"transformers_tests{name}")
        module.__dict__.update(content)
    from transformers_tests.test_configuration_common import ConfigTester  # type: ignore[import-not-found]
    from transformers_tests.test_modeling_common import ModelTesterMixin  # type: ignore[import-not-found]
    from transformers_tests.test_training_mixin import TrainingTesterMixin  # type: ignore[import-not-found]

    return types.SimpleNamespace(
        ConfigTester=ConfigTester, ModelTesterMixin=ModelTesterMixin, TrainingTesterMixin=TrainingTesterMixin
    )


@dataclass
class ModelTester:
    """What the mixins ask of a model: its classes, and a small configuration with a batch."""

    config_class: type
    all_model_classes: tuple[type, ...]
    settings: dict[str, Any]
    batch_size: int = 3
    seq_length: int = 7
    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    vocab_size: int = 99
    is_training: bool = True

    def get_config(self) -> Any:
        return self.config_class(**self.settings)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Tensor]]:
        tokens = torch.randint(self.vocab_size, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens).tril()}

    def prepare_config_and_inputs_for_model_class(self, _: type) -> tuple[Any, dict[str, Tensor]]:
        return self.prepare_config_and_inputs_for_common()

    @property
    def causal_lm_class(self) -> type:
        return self.all_model_classes[-1]


def build_model_testers() -> Iterator[tuple[str, ModelTester]]:
    """Our language model with three attentions, and Llama with HYLA by name."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from recombine.integrations.huggingface import register
    from recombine.integrations.huggingface.language_model import RecombineConfig, RecombineForCausalLM
    from recombine.models.language_model import LanguageModelConfig

    register()
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["recombine"] = "RecombineForCausalLM"  # so that the tests pass labels
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": 99}
    sizes: dict[str, Any] = {"num_layers": 2, "embedding_dim": 32, "kqv_dim": 32, "mlp_dim": 37, "num_heads": 4}
    for attention in ("hyla", "softmax", "linear"):
        settings = {**ends, "settings": asdict(LanguageModelConfig(**sizes, attention=attention))}
        yield f"transformers, our model, {attention}", ModelTester(RecombineConfig, (RecombineForCausalLM,), settings)
    llama = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {**ends, **llama, "attn_implementation": "hyla"}
    yield "transformers, Llama with HYLA", ModelTester(LlamaConfig, (LlamaModel, LlamaForCausalLM), settings)


# --------------------------------------------------------------------------------------------------------------- fla


def run_fla(cache: Path) -> Iterator[Case]:
    folder = install(cache)
    spec = importlib.util.spec_from_file_location("fla_naive", folder / "fla/ops/linear_attn/naive.py")
    assert spec is not None
    assert spec.loader is not None
    naive: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    types_of = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for kernel, dtype, length, widths in itertools.product(
        ("auto", "reference", "chunked", "cpu"), types_of, (1, 17, 64, 192), ((8, 8), (16, 24))
    ):
        name = f"{kernel}, {str(dtype).removeprefix('torch.')}, {length} tokens, heads of {widths[0]} and {widths[1]}"
        yield attempt("fla", name, compare_with_fla, naive, kernel, dtype, length, widths)


def compare_with_fla(naive: Any, kernel: Any, dtype: torch.dtype, length: int, widths: tuple[int, int]) -> None:
    """Outputs, gradients and the final state of both recurrences, which compute in float32."""
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, length, 3, width) for width in (widths[0], *widths)]
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    with use_kernel(kernel):
        out, _ = attend(q, k, v, normalisation="none", value_network="linear", causal=True, return_codes=False)
    expected, state = naive.naive_recurrent_linear_attn(q, k, v, output_final_state=True)
    tolerance = {"atol": 5e-4, "rtol": 1e-4} if dtype in (torch.float32, torch.float64) else {"atol": 0.1, "rtol": 0.02}
    torch.testing.assert_close(out, expected, **tolerance)
    direction = torch.randn(out.shape, generator=generator).to(dtype)
    grads = (torch.autograd.grad(result, (q, k, v), direction) for result in (out, expected))
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted, **tolerance)
    torch.testing.assert_close(
        linear.sum_products(k, v, "linear"), state.to(torch.promote_types(dtype, torch.float32)), **tolerance
    )
    if length % 64 == 0:
        precise = (x.detach().float() for x in (q, k, v))
        torch.testing.assert_close(out.float(), naive.naive_chunk_linear_attn(*precise), **tolerance)


# -------------------------------------------------------------------------------------------------------------- page

SUITES: dict[str, Callable[[Path], Iterator[Case]]] = {
    "torch": run_torch,
    "transformers": run_transformers,
    "fla": run_fla,
}


def write_table(cases: list[Case]) -> str:
    """Counts per suite, what failed, and why tests were excluded."""
    lines = ["| suite | run | passed | failed | excluded |", "| --- | ---: | ---: | ---: | ---: |"]
    for suite in dict.fromkeys(case.suite for case in cases):
        counts = Counter(case.outcome for case in cases if case.suite == suite)
        run = counts["passed"] + counts["failed"]
        lines.append(f"| {suite} | {run} | {counts['passed']} | {counts['failed']} | {counts['excluded']} |")
    failed = [case for case in cases if case.outcome == "failed"]
    lines += ["", "Failed:" if failed else "Nothing failed.", ""]
    lines += [f"- {case.suite}: `{case.name}`: {shorten(case.reason)}" for case in failed]
    heading = "Excluded, with the reason that the suite or `EXCLUDED` in `benchmarks/foreign.py` gives:"
    lines += ["", heading, "", "| reason | tests |", "| --- | ---: |"]
    reasons = Counter(shorten(case.reason) for case in cases if case.outcome == "excluded")
    lines += [f"| {reason} | {number} |" for reason, number in reasons.most_common()]
    lines += ["", "Not run at all, as the packages do not hold it:", ""]
    lines += [f"- {name}: {reason}." for name, reason in MISSING.items()]
    return "\n".join(lines)


def shorten(reason: str) -> str:
    """The last line of an error, in a table."""
    return (reason.strip().splitlines() or [""])[-1].replace("|", "\\|")[:160]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="one of the suites (default: all)")
    parser.add_argument("--page", type=Path, help="page whose table is written")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "foreign", help="folder of the downloaded packages"
    )
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    cases = []
    for name in options.suite or SUITES:
        for case in SUITES[name](options.cache.resolve()):
            print(f"{case.suite}: {case.name}: {case.outcome} {shorten(case.reason)}", file=sys.stderr, flush=True)
            cases.append(case)
    table = write_table(cases)
    print(table)
    if options.page is not None:
        before, rest = options.page.read_text().split(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}")
    return int(any(case.outcome == "failed" for case in cases))


if __name__ == "__main__":
    sys.exit(main())
