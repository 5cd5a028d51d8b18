"""Shapes and types of every public signature are checked while the tests run."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")

from jaxtyping import install_import_hook

install_import_hook("recombine", "beartype.beartype")

import pytest
from jaxtyping import config


@pytest.fixture
def unchecked():
    """Without type checks, as users run it: what a wrong value then says."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
