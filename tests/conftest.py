"""Shapes and types of every public signature are checked while the tests run."""

import pytest
from jaxtyping import config, install_import_hook

install_import_hook("recombine", "beartype.beartype")


@pytest.fixture
def unchecked():
    """Without type checks, as users run it: what a wrong value then says."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
