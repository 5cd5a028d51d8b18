"""Folders for data: of the user's choice, of their home, or private among the temporary files."""

import os
import pwd
from pathlib import Path

import pytest

import recombine
from recombine.foundation.errors import InputError
from recombine.foundation.files import data_folder, is_private
from recombine.foundation.native import cache_directory

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners and modes here")


@pytest.mark.parametrize("home", ["/dev/null/none", "a file", "nobody"])
def test_without_a_writable_home_a_folder_is_asked_for(home, monkeypatch, tmp_path):
    """Not a folder called "~" in the current one."""
    monkeypatch.delenv("RECOMBINE_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / home))
    if home == "nobody":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(pwd, "getpwuid", lambda _: {}["nobody"])
    with pytest.raises(InputError, match=r"there is no folder for data .*: expected a writable one in RECOMBINE_CACHE"):
        data_folder("a")
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "chosen"))
    assert data_folder("a", "b") == tmp_path / "chosen" / "a" / "b"
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
