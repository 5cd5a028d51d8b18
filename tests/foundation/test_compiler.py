"""Building C on first use: cached, checked, rebuilt when damaged, and safe when several build at once."""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recombine.foundation import native as compiler

pytestmark = pytest.mark.skipif(compiler.find_compiler() is None, reason="no C compiler on the PATH")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text('#include "number.h"\nint answer(void) { return NUMBER; }\n')
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    return path


def load(source) -> ctypes.CDLL:
    return compiler.load_library(source)


def builds(source) -> list:
    return sorted((source.parent / "cache").glob("*"))


def test_a_build_is_made_once_and_found_again(source, monkeypatch):
    assert load(source).answer() == 42
    (build,) = builds(source)
    monkeypatch.setattr(compiler, "_build", lambda *_: pytest.fail("built twice"))
    assert load(source).answer() == 42
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    assert load(source).answer() == 42, "without a compiler an earlier build serves"
    assert builds(source) == [build]


def test_a_changed_header_is_built_anew(source):
    load(source)
    (source.parent / "number.h").write_text("#define NUMBER 43\n")
    assert load(source).answer() == 43
    assert len(builds(source)) == 2


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
    with pytest.raises(compiler.CompilerError, match=r"cannot compile answer\.c"):
        load(source)
    assert builds(source) == []


@pytest.mark.parametrize("openmp", ["-fno-such-openmp", "/no/such/libomp.so"])
def test_openmp_is_dropped_where_it_is_missing(source, monkeypatch, caplog, openmp):
    monkeypatch.setattr(compiler, "find_openmp", lambda _: [(openmp,)])
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
        compiler.find_compiler.cache_clear()
        compiler._compiler_version.cache_clear()

    yield set_it
    monkeypatch.undo()
    compiler.find_compiler.cache_clear()


def test_a_compiler_may_come_with_options(source, set_compiler):
    source.write_text("int answer(void) { return NUMBER; }\n")
    set_compiler(f"{compiler.find_compiler()[0]} -DNUMBER=44 '-DUNUSED=a b'")
    assert load(source).answer() == 44


def test_a_missing_compiler_is_named(source, set_compiler):
    set_compiler("no-such-compiler -m64")
    with pytest.raises(compiler.CompilerError, match="CC is 'no-such-compiler -m64', which is no program on the PATH"):
        load(source)


def test_a_compiler_that_hangs_is_ended_with_what_it_started(source, set_compiler, monkeypatch):
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT", 0.5)
    (source.parent / "pid").touch()
    set_compiler(write_program(source.parent / "slow", f"sleep 1000 & echo $! > {source.parent}/pid; wait"))
    with pytest.raises(compiler.CompilerError, match=r"slow did not end within 0 seconds"):
        load(source)
    child = int((source.parent / "pid").read_text())
    state = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 5
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().split()[2] == "Z"
    monkeypatch.setattr(compiler, "COMPILE_TIMEOUT", 1_000)
    with pytest.raises(compiler.CompilerError, match="did not end"):  # at once: every kernel would wait for it again
        load(source)


def test_a_quotation_mark_without_its_partner(source, set_compiler):
    set_compiler('gcc "')
    with pytest.raises(compiler.CompilerError, match="CC is 'gcc \"', which is no program on the PATH"):
        load(source)


def test_a_compiler_of_another_kind_is_a_reason(source, set_compiler):
    program = "echo \"cl : Command line error D8021 : invalid numeric argument '/std=gnu11'\"; exit 2"
    set_compiler(write_program(source.parent / "cl", program))
    with pytest.raises(compiler.CompilerError, match=r"cl cannot compile answer\.c: cl : Command line error D8021"):
        load(source)


def test_a_file_that_is_no_program_is_a_reason(source, set_compiler):
    program = source.parent / "text"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    set_compiler(str(program))
    with pytest.raises(compiler.CompilerError, match="does not run"):
        load(source)


def test_no_compiler_and_no_build(source, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    with pytest.raises(compiler.CompilerError, match="no C compiler on the PATH"):
        load(source)
