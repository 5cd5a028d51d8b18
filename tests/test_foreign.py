"""Other people's tests pass, and docs/compatibility.md says what they say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_page_of_compatibility_is_what_other_peoples_tests_say(tmp_path):
    pytest.importorskip("transformers")
    written = (ROOT / "docs" / "compatibility.md").read_text()
    page = tmp_path / "page.md"
    page.write_text(written)
    run = [sys.executable, "benchmarks/foreign.py", "--page", str(page)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert page.read_text() == written
