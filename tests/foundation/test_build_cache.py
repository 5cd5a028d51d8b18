"""The folder of compiled kernels: what is not ours, or not private, is never loaded."""

import os
import tempfile
from pathlib import Path

import pytest

from recombine.foundation import native as build_cache
from recombine.foundation import native as compiler
from recombine.foundation.errors import InputError

pytestmark = [
    pytest.mark.skipif(compiler.find_compiler() is None, reason="no C compiler on the PATH"),
    pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners and modes here"),
]
STRANGER = 54321


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def build(source) -> Path:
    compiler.load_library(source)
    (path,) = (source.parent / "cache").glob("*.so")
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


def test_a_folder_of_another_user_is_refused(source, monkeypatch):
    build(source)
    monkeypatch.setattr(build_cache, "_trusted_users", lambda: {STRANGER})
    refuse_to_load(monkeypatch)
    with pytest.raises(
        InputError, match=rf"RECOMBINE_CACHE.* of user {os.getuid()} with mode 700: expected one that bel"
    ):
        compiler.load_library(source)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(source, monkeypatch, mode):
    build(source).parent.chmod(mode)
    refuse_to_load(monkeypatch)
    with pytest.raises(InputError, match=rf"with mode {mode:o}: expected one .* that only you can write to"):
        compiler.load_library(source)


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_build_that_others_can_write_to_is_not_loaded(source, monkeypatch, mode):
    path = build(source)
    path.chmod(mode)
    assert build_cache.load_if_intact(path) is None
    assert compiler.load_library(source).answer() == 42
    assert path.stat().st_mode & 0o077 == 0, "built again"


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give a file away")
def test_a_build_of_another_user_is_not_loaded(source):
    path = build(source)
    os.chown(path, STRANGER, STRANGER)
    assert build_cache.load_if_intact(path) is None
    assert compiler.load_library(source).answer() == 42
    assert path.stat().st_uid == os.getuid()


def test_a_link_is_not_loaded(source, tmp_path):
    path = build(source)
    elsewhere = path.rename(tmp_path / path.name)
    path.symlink_to(elsewhere)
    assert build_cache.load_if_intact(path) is None


def test_builds_of_root_are_trusted():
    assert build_cache._trusted_users() == {os.getuid(), 0}


def test_a_read_only_folder_serves_its_builds(source, monkeypatch):
    build(source)
    monkeypatch.setattr(compiler, "is_writable", lambda _: False)
    assert compiler.load_library(source).answer() == 42
    source.write_text("int answer(void) { return 43; }\n")
    with pytest.raises(compiler.CompilerError, match=r"no build of answer\.c in .*cache, which is read-only"):
        compiler.load_library(source)


@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_without_a_home_builds_go_to_a_folder_of_ones_own(source, monkeypatch, tmp_path, home):
    monkeypatch.delenv("RECOMBINE_CACHE")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home == "missing":
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    else:
        monkeypatch.setattr(Path, "home", lambda: source)  # a file: nothing can be created in it
    assert compiler.load_library(source).answer() == 42
    folder = tmp_path / f"recombine-{os.getuid()}"
    assert len(list(folder.glob("*.so"))) == 1
    assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_planted_among_the_temporary_files_is_refused(source, monkeypatch, tmp_path):
    monkeypatch.delenv("RECOMBINE_CACHE")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: source)
    (tmp_path / f"recombine-{os.getuid()}").mkdir()
    (tmp_path / f"recombine-{os.getuid()}").chmod(0o777)
    with pytest.raises(InputError, match="expected one that belongs to you"):
        compiler.load_library(source)


def test_an_unusable_folder_is_named(source, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(source / "cache"))
    with pytest.raises(InputError, match=r"RECOMBINE_CACHE.* is .* expected a writable directory \(Not a directory\)"):
        compiler.load_library(source)
