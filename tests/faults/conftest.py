"""A finished run, and a copy of it to damage."""

import shutil
from pathlib import Path

import pytest

from verbs import train_once


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    return train_once(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "runs" / pristine.name))
