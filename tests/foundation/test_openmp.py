"""OpenMP is found where it is; a compiler without it still builds every kernel, with the same numbers."""

import os
import shutil
import subprocess
import sys

import pytest

from recombine.foundation import native as compiler
from recombine.foundation import native as openmp

CHECK = """
import logging, torch
logging.basicConfig(level=logging.WARNING)
from recombine.kernels import attend, cpu, draws, episodes, gelu, layers, norm, reference, weight_gradient
assert cpu.is_available(), cpu.why_unavailable()
for kernel in (draws, episodes, gelu, layers, norm, weight_gradient):
    assert not isinstance(kernel.open_library(), str), kernel.open_library()
q, k, v = torch.randn(3, 2, 40, 4, 8).unbind()
for choice in (("softmax", "linear"), ("rms_head", "hyper_relu")):
    choices = dict(zip(("normalisation", "value_network"), choice), causal=True)
    torch.testing.assert_close(cpu.attend(q, k, v, **choices), reference.attend(q, k, v, **choices)[0], rtol=1e-4, atol=1e-4)
print("agreed")
"""


def build_with(command, tmp_path):
    environment = {**os.environ, "CC": command, "RECOMBINE_CACHE": str(tmp_path / "cache")}
    return subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")
def test_clang_builds_every_kernel(tmp_path):
    done = build_with("clang", tmp_path)
    assert "agreed" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("real", ["gcc", "clang"])
def test_a_compiler_that_refuses_openmp_builds_every_kernel_with_one_thread(tmp_path, real):
    """As Apple's clang, and clang on Linux without libomp."""
    if shutil.which(real) is None:
        pytest.skip(f"no {real}")
    program = tmp_path / "apple-clang"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        "*--version*) echo Apple clang version 15.0.0; exit 0;;\n"
        "*-fopenmp*) echo \"clang: error: unsupported option '-fopenmp'\"; exit 1;;\n"
        f'esac\nexec {real} "$@"\n'
    )
    program.chmod(0o755)
    done = build_with(str(program), tmp_path)
    assert "agreed" in done.stdout, done.stderr
    assert "cpu.c was built without OpenMP: it uses one thread" in done.stderr


def test_gcc_takes_the_runtime_of_torch(monkeypatch):
    monkeypatch.setattr(openmp, "find_torch_runtimes", lambda: ["/x/libiomp5.so", "/x/torch/lib/libgomp.so.1"])
    assert openmp.find_openmp(is_clang=False) == [("-fopenmp", "/x/torch/lib/libgomp.so.1"), ("-fopenmp",)]


def test_clang_takes_no_second_runtime_of_llvm(monkeypatch):
    monkeypatch.setattr(openmp, "find_torch_runtimes", lambda: ["/x/torch/lib/libomp.dylib"])
    assert openmp.find_openmp(is_clang=True) == [("-Xclang", "-fopenmp", "/x/torch/lib/libomp.dylib")]


def test_clang_looks_where_homebrew_and_llvm_put_it(monkeypatch, tmp_path):
    monkeypatch.setattr(openmp, "find_torch_runtimes", lambda: ["/x/torch/lib/libgomp.so.1"])
    monkeypatch.setattr(openmp, "PLACES", (str(tmp_path / "llvm-*" / "lib"), str(tmp_path / "lib")))
    assert openmp.find_openmp(is_clang=True) == [("-fopenmp",)]
    for folder in ("lib", "llvm-14/lib", "llvm-15/lib"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "libgomp.so.1").touch()
        (tmp_path / folder / "libomp.so").touch()
    monkeypatch.setattr("platform.system", lambda: "Linux")
    newest = str(tmp_path / "llvm-15/lib/libomp.so")
    assert openmp.find_openmp(is_clang=True) == [("-Xclang", "-fopenmp", newest), ("-fopenmp",)]
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    (tmp_path / "lib/libomp.dylib").touch()
    assert openmp.find_openmp(is_clang=True)[0] == ("-Xclang", "-fopenmp", str(tmp_path / "lib/libomp.dylib"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_runtime_of_torch_is_found_on_linux():
    assert any("omp" in path and os.path.exists(path) for path in openmp.find_torch_runtimes())


def test_every_attempt_keeps_the_arithmetic():
    for attempt in compiler.list_attempts(is_clang=True):
        assert {"-O3", "-ffp-contract=fast"} <= set(attempt)
        assert "-ffast-math" not in attempt
