"""The table of faults in docs/reliability.md says what the last soak measured, and every fault of the log has its row."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from faults import differences, recover

SCRIPT = Path(__file__).parents[2] / "docs" / "write_reliability.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installed package has no documentation")
# parts of a row that run by default, and what has a sentence of its own
WITHOUT_A_ROW = {
    "a few random kills",
    "kills at some operations",
    "text, some operations",
    "text, at random",
    "command lines",
}


@pytest.fixture
def page(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("write_reliability")


def test_the_page_agrees_with_the_measured_numbers(page):
    summary = json.loads(page.SUMMARY.read_text())
    written = page.PAGE.read_text().split(page.BEGIN)[1].split(page.END)[0].strip()
    assert written == page.format_part(summary)
    assert {row.fault for row in page.ROWS} == summary["faults"].keys() - WITHOUT_A_ROW
    assert sum(fault["lost"] for fault in summary["faults"].values()) == 0


def test_a_loss_reaches_the_table(page, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_RECOVERY_LOG", str(tmp_path / "log"))
    recover("flipped bit", "byte 0", lambda: {"step": 8}, lambda state: differences(state, {"step": 8}), tried=3)
    with pytest.raises(AssertionError, match="after flipped bit, byte 9"):
        recover("flipped bit", "byte 9", lambda: {"step": 8}, lambda state: differences(state, {"step": 8, "loss": 1}))
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["lost"] for line in lines] == [[], ["loss"]]
    summary = page.summarise(lines)
    assert (summary["tried"], summary["lost"], summary["recoveries"]) == (4, 1, 2)
    (row,) = (row for row in page.ROWS if row.fault == "flipped bit")
    assert "| 4 places | in 1 recoveries; the damage is named" in page.format_row(row, summary)
