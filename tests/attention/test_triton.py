"""The Triton kernel: the numbers of the definition in Triton's interpreter, and programs that compile for a GPU."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import HYLA, compare_attention
from recombine.attention import triton as kernel
from recombine.attention.definition import AttentionOptions

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytestmark = pytest.mark.skipif(not TRITON, reason="triton is not installed")
# Triton's interpreter must be chosen before Triton is imported: these tests run in a process of their own
inside = pytest.mark.skipif(not INTERPRETED, reason="runs inside test_in_the_interpreter")


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout[-5000:]


@pytest.fixture(scope="module", autouse=INTERPRETED and TRITON)
def programs():
    """Load the programs without the tests' type checker: Triton reads their source."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "meta_path", [finder for finder in sys.meta_path if "Jaxtyping" not in type(finder).__name__]
        )
        yield importlib.import_module("recombine.attention.triton_tiles")


def attend(q, k, v, **options):
    return kernel.attend(q, k, v, AttentionOptions(**options))


@inside
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    choice=st.sampled_from([(norm, net) for norm in kernel.NORMALISATIONS for net in kernel.VALUE_NETWORKS]),
    q=st.integers(1, 20),
    k=st.integers(1, 20),
    h=st.integers(1, 3),
    d=st.integers(1, 5),
    e=st.integers(1, 5),
    bias=st.sampled_from([None, "shared", "batch"]),
    mask=st.sampled_from([None, "keys"]),
    causal=st.booleans(),
)
def test_values_and_gradients_are_those_of_the_definition(**drawn):
    compare_attention(attend, torch.float32, b=2, dropout=None, **drawn)


@inside
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "num_keys"), [(torch.float32, 35), (torch.bfloat16, 5)], ids=str)
def test_hyla_over_several_tiles_and_in_bf16(dtype, num_keys, causal):
    sizes = {"b": 2, "q": 3, "k": num_keys, "h": 2, "d": 2, "e": 2}
    choice = (HYLA["normalisation"], HYLA["value_network"])
    compare_attention(attend, dtype, 1, choice, causal, None, bias="shared", **sizes)


@inside
def test_nan_is_not_hidden():
    q, k, v = torch.randn(3, 1, 4, 2, 2)
    v[0, 1, 0, 0] = torch.nan
    assert attend(q, k, v, **HYLA).isnan().any()


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from recombine.attention import triton_tiles

types = {"scale": "fp32", "bias_batch": "i64", "key_mask": "*u8"}
types |= dict.fromkeys(("bias", "out", "grad_q", "grad_k", "grad_v", "grad_bias"), "*fp32")
types |= dict.fromkeys(("q", "k", "v", "grad_out"), "*bf16")
sizes = dict(D=4, DP=16, E=4, EP=16, BQ=16, BK=16)
flags = dict.fromkeys(("RMS", "HYPER", "RELU", "CAUSAL", "MASKED", "BIASED"), True)
programs = [(triton_tiles.forward, {})] + [(triton_tiles.backward, {"OWNER": owner}) for owner in range(3)]
for program, more in programs:
    constants = {**sizes, **flags, **more}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in program.arg_names}
    source = ASTSource(fn=program, signature=signature, constexprs=constants)
    print(len(triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["ptx"]))
"""


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_the_programs_compile_for_a_gpu():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    outcome = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert len(outcome.stdout.split()) == 4
