"""Building C on first use: cached, checked, rebuilt when damaged, and safe when several build at once."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest

from recombine.errors import InputError
from recombine.kernels import compiler

pytestmark = pytest.mark.skipif(compiler.find_compiler() is None, reason="no C compiler on the PATH")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text('#include "number.h"\nint answer(void) { return NUMBER; }\n')
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    return path


def load(source) -> ctypes.CDLL:
    return compiler.load_library(source, headers=[source.parent / "number.h"])


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


def test_openmp_is_dropped_where_it_is_missing(source, monkeypatch):
    monkeypatch.setattr(compiler, "_openmp_flags", lambda: ["-fno-such-openmp"])
    assert load(source).answer() == 42


def test_no_compiler_and_no_build(source, monkeypatch):
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    with pytest.raises(compiler.CompilerError, match="no C compiler on the PATH"):
        load(source)


def test_an_unusable_cache_directory_is_named(source, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(source / "cache"))
    with pytest.raises(InputError, match=r"RECOMBINE_CACHE is .* expected a writable directory"):
        load(source)
