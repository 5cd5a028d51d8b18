"""Folders for data: of the user's choice, of their home, or private among the temporary files."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

import recombine
from recombine.foundation.errors import InputError
from recombine.foundation.files import data_folder, is_private
from recombine.foundation.native import cache_directory

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners and modes here")


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """No home folder, and a place for temporary files."""
    monkeypatch.delenv("RECOMBINE_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/dev/null/none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"recombine-data-{os.getuid()}"


def test_without_a_home_data_go_to_a_private_folder(temporary):
    assert data_folder("a", "b") == temporary / "a" / "b"
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_a_folder_for_data_that_others_can_write_to_is_refused(temporary):
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(InputError, match="belongs to somebody else or others can write to it: expected a folder of"):
        data_folder("a")


def test_a_user_without_any_home(temporary, monkeypatch, tmp_path):
    """Not a folder called "~" in the current one."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: {}["nobody"])
    monkeypatch.chdir(tmp_path)
    assert data_folder("a") == temporary / "a"
    assert not (tmp_path / "~").exists()


def test_the_home_of_nobody(monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", "~no-such-user/cache")
    for folder in (data_folder, cache_directory):
        with pytest.raises(InputError, match="RECOMBINE_CACHE is '~no-such-user/cache': expected a folder"):
            folder()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
def test_a_link_that_somebody_else_made_is_not_private(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert is_private(tmp_path / "link")
    os.lchown(tmp_path / "link", 54321, 54321)
    assert not is_private(tmp_path / "link")


def test_what_is_private(tmp_path):
    tmp_path.chmod(0o755)
    assert is_private(tmp_path)
    assert not is_private(tmp_path, owners={os.getuid() + 1})
    tmp_path.chmod(0o770)
    assert not is_private(tmp_path)


SYSTEM = ("/proc", "Path(name).read_text()", 'errors.read_text(errors="replace")')  # files of the machine, not of users


def test_text_is_read_as_utf_8_whatever_the_locale_says():
    """`read_text()` alone would decode a run's files as Latin-1 or ASCII where that is the locale's encoding."""
    lines = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(Path(recombine.__file__).parent.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ".read_text(" in line and "encoding=" not in line and not any(part in line for part in SYSTEM)
    ]
    assert lines == []
