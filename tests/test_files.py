"""Folders for data: of the user's choice, of their home, or private among the temporary files."""

import os
import tempfile

import pytest

from recombine.errors import InputError
from recombine.files import data_folder, is_private

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


def test_what_is_private(tmp_path):
    tmp_path.chmod(0o755)
    assert is_private(tmp_path)
    assert not is_private(tmp_path, owners={os.getuid() + 1})
    tmp_path.chmod(0o770)
    assert not is_private(tmp_path)
