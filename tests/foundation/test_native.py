"""C built on first use: cached, checked, private, rebuilt when damaged, safe when several build at once, with OpenMP or without."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recombine.foundation import native
from recombine.foundation.errors import InputError

pytestmark = [
    pytest.mark.skipif(native.find_compiler() is None, reason="no C compiler on the PATH"),
    pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners and modes here"),
]
STRANGER = 54321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text('#include "number.h"\nint answer(void) { return NUMBER; }\n')
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    return path


def load(source) -> ctypes.CDLL:
    return native.load_library(source)


def builds(source) -> list:
    return sorted((source.parent / "cache").glob("*"))


def test_a_build_is_made_once_and_found_again(source, monkeypatch):
    assert load(source).answer() == 42
    (build,) = builds(source)
    monkeypatch.setattr(native, "_build", lambda *_: pytest.fail("built twice"))
    assert load(source).answer() == 42
    monkeypatch.setattr(native, "find_compiler", lambda: None)
    assert load(source).answer() == 42, "without a compiler an earlier build serves"
    assert builds(source) == [build]
    monkeypatch.undo()
    monkeypatch.setenv("RECOMBINE_CACHE", str(build.parent))
    (source.parent / "number.h").write_text("#define NUMBER 43\n")
    assert load(source).answer() == 43, "a changed header is built anew"


@pytest.mark.parametrize("damage", [b"", b"\x7fELF rubbish"])
def test_a_damaged_build_is_replaced(source, damage):
    load(source)
    (build,) = builds(source)
    intact = build.read_bytes()
    # a new file, for the old one is mapped into this process
    build.unlink()
    build.write_bytes(damage)
    assert load(source).answer() == 42
    assert build.read_bytes() == intact


def test_many_at_once(source):
    with ThreadPoolExecutor(8) as pool:
        assert [library.answer() for library in pool.map(load, [source] * 8)] == [42] * 8
    assert len(builds(source)) == 1, "nothing half-written is left"


def test_a_compiler_that_fails_is_a_reason(source):
    source.write_text("int answer(void) { return }\n")
    with pytest.raises(native.CompilerError, match=r"cannot compile answer\.c"):
        load(source)
    assert builds(source) == []


@pytest.mark.parametrize("flag", ["-fno-such-openmp", "/no/such/libomp.so"])
def test_openmp_is_dropped_where_it_is_missing(source, monkeypatch, caplog, flag):
    monkeypatch.setattr(native, "list_attempts", lambda is_clang: [(*native.FLAGS, flag), native.FLAGS])
    assert load(source).answer() == 42
    assert "answer.c was built without OpenMP: it uses one thread" in caplog.text


def write_program(path, script) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def set_compiler(monkeypatch):
    """Name another compiler, which would otherwise be looked for once per process."""

    def set_it(command):
        monkeypatch.setenv("CC", command)
        native.find_compiler.cache_clear()
        native.compiler_version.cache_clear()

    yield set_it
    monkeypatch.undo()
    native.find_compiler.cache_clear()


def test_a_compiler_that_hangs_is_ended_and_not_tried_again(source, set_compiler, monkeypatch):
    monkeypatch.setattr(native, "COMPILE_TIMEOUT", 0.5)
    set_compiler(write_program(source.parent / "slow", "exec sleep 1000"))
    with pytest.raises(native.CompilerError, match=r"slow did not end within 0 seconds"):
        load(source)
    monkeypatch.setattr(native, "COMPILE_TIMEOUT", 1_000)
    with pytest.raises(native.CompilerError, match="did not end"):
        load(source)


@pytest.mark.parametrize("command", ["no-such-compiler -m64", 'gcc "'])
def test_a_missing_compiler_is_named(source, set_compiler, command):
    set_compiler(command)
    with pytest.raises(native.CompilerError, match=f"CC is '{command}', which is no program on the PATH"):
        load(source)


def build(source) -> Path:
    load(source)
    (path,) = builds(source)
    return path


def refuse_to_load(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda path: pytest.fail(f"loaded {path}"))


def test_folder_and_builds_are_private_whatever_the_umask(source):
    before = os.umask(0)
    try:
        path = build(source)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def give_away(path):
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((lambda path, mode=mode: path.chmod(mode), f"with mode {mode:o}") for mode in (0o777, 0o1777, 0o770, 0o702)),
        pytest.param(give_away, f"of user {STRANGER} with mode 700", marks=needs_root),
    ],
)
def test_a_folder_of_others_is_refused(source, monkeypatch, spoil, message):
    spoil(build(source).parent)
    refuse_to_load(monkeypatch)
    with pytest.raises(InputError, match=f"RECOMBINE_CACHE.* {message}: expected one that belongs to you"):
        load(source)


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda path, mode=mode: path.chmod(mode) for mode in (0o777, 0o720, 0o702)),
        pytest.param(give_away, marks=needs_root),
    ],
)
def test_a_build_of_others_is_not_loaded(source, spoil):
    path = build(source)
    spoil(path)
    assert native.load_if_intact(path) is None
    assert load(source).answer() == 42
    assert (path.stat().st_mode & 0o077, path.stat().st_uid) == (0, os.getuid()), "built again"


def test_a_link_is_not_loaded(source, tmp_path):
    path = build(source)
    elsewhere = path.rename(tmp_path / path.name)
    path.symlink_to(elsewhere)
    assert native.load_if_intact(path) is None


def test_a_read_only_folder_serves_its_builds(source, monkeypatch):
    build(source)
    monkeypatch.setattr(native, "is_writable", lambda _: False)
    assert load(source).answer() == 42
    source.write_text("int answer(void) { return 43; }\n")
    with pytest.raises(native.CompilerError, match=r"no build of answer\.c in .*cache, which is read-only"):
        load(source)


@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_without_a_home_builds_go_to_a_folder_of_ones_own(source, monkeypatch, tmp_path, home):
    monkeypatch.delenv("RECOMBINE_CACHE")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home == "missing":
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    else:
        monkeypatch.setattr(Path, "home", lambda: source)  # a file: nothing can be created in it
    assert load(source).answer() == 42
    folder = tmp_path / f"recombine-{os.getuid()}"
    assert len(list(folder.glob("*.so"))) == 1
    assert folder.stat().st_mode & 0o077 == 0


CHECK = """
import logging, torch
logging.basicConfig(level=logging.WARNING)
from recombine.attention import definition
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions
for source in cpu.FUNCTIONS:
    assert not isinstance(cpu.open_library(source), str), cpu.open_library(source)
q, k, v = torch.randn(3, 2, 40, 4, 8).unbind()
for choice in (("softmax", "linear"), ("rms_head", "hyper_relu")):
    options = AttentionOptions(*choice, causal=True)
    torch.testing.assert_close(cpu.attend(q, k, v, options), definition.attend(q, k, v, options)[0], rtol=1e-4, atol=1e-4)
print("agreed")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("real", "has_openmp"), [("clang", True), ("clang", False), ("gcc", False)])
def test_other_compilers_build_every_kernel(tmp_path, real, has_openmp):
    """Without OpenMP with one thread: as Apple's clang, and clang on Linux without libomp."""
    if shutil.which(real) is None:
        pytest.skip(f"no {real}")
    refuse = (
        'case "$*" in\n'
        "*--version*) echo Apple clang version 15.0.0; exit 0;;\n"
        "*-fopenmp*) echo \"clang: error: unsupported option '-fopenmp'\"; exit 1;;\n"
        f'esac\nexec {real} "$@"'
    )
    command = real if has_openmp else write_program(tmp_path / "apple-clang", refuse)
    environment = {**os.environ, "CC": command, "RECOMBINE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=500)
    assert "agreed" in done.stdout, done.stderr
    assert ("cpu.c was built without OpenMP: it uses one thread" in done.stderr) != has_openmp


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_the_highest_level_that_loads_is_taken(tmp_path, monkeypatch):
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return LEVEL; }")
    monkeypatch.setattr(native, "read_cpu", lambda: {"flags": " ".join(native.LEVELS["x86-64-v4"])})
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert native.load_prebuilt(source, tmp_path) is None
    for level, serial, number in (("x86-64-v3", False, 3), ("x86-64-v4", True, 4)):
        path = tmp_path / native.name_build(source, level, serial=serial)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DLEVEL={number}", "-o", path, source], check=True)
    (tmp_path / native.name_build(source, "x86-64-v4")).write_bytes(b"broken")
    library = native.load_prebuilt(source, tmp_path)
    assert library is not None
    assert library.seven() == 4
    assert native.load_prebuilt(Path("other.c"), tmp_path) is None
    monkeypatch.setattr(native, "read_cpu", lambda: {"flags": " ".join(native.LEVELS["x86-64-v3"] - {"avx2"})})
    assert native.load_prebuilt(source, tmp_path) is None
