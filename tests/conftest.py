"""Shapes and types of every public signature are checked while the tests run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from jaxtyping import config, install_import_hook

from browser import BROWSER, Browser

# experiments run in this process, where tests can make them small
os.environ["RECOMBINE_JOBS"] = "1"

install_import_hook("recombine", "beartype.beartype")

# how long an example takes says more about the machine than about the code
# the same examples each time: a run of the suite tells about the change, not about the day
settings.register_profile("recombine", deadline=None, derandomize=True)
settings.load_profile("recombine")


@pytest.fixture(autouse=True)
def seed():
    """The same initial parameters and inputs in each run of a test, and in any order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked():
    """Without type checks, as users run it: what a wrong value then says."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if BROWSER is None:
        pytest.skip("no browser: expected chromium or google-chrome on the path")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()
