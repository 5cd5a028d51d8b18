"""Sizes that cannot fit are refused in one line that says what would be needed, before any memory is taken."""

import pytest

from recombine.cli.main import run as run_verb
from recombine.compositions import all_multisets, all_sets
from recombine.foundation import errors as memory
from recombine.foundation.errors import InputError
from recombine.random import Stream

LINES = [
    ("show sraven --num-features 1000", "8 modules, 1000 at once, make 204,032,533,091,695,451 compositions"),
    ("check sraven --num-features 20", "8 modules, 20 at once, make 888,030 compositions: expected at most 200,000"),
    ("check fuzzy-logic --num-variables 16", "make 134,209,536 compositions: expected at most 200,000"),
    ("show fuzzy-logic --num-variables 1000000000000", "makes 2**1000000000000 terms: expected at most 30"),
    ("train fuzzy-logic --num-layers 100000", "num_layers is 100,000: expected at most 3,000"),
    ("train fuzzy-logic --embedding-dim 10000000", "parameters, with gradients and moments, takes 106 GB of memory"),
    ("train fuzzy-logic --embedding-dim 1000000000000000000", "expected smaller sizes"),
    ("train fuzzy-logic --batch-size 1000000000", "a batch of 1,000,000,000 × 32 × 5 numbers takes 640 GB of memory"),
    ("train fuzzy-logic --seed 1180591620717411303424", "expected a whole number from 0 to 2**63 - 1"),
    ("show fuzzy-logic --num-examples 1000000000", "a batch of 1 × 1,000,000,000 × 5 numbers takes 20 GB"),
    (
        "check fuzzy-logic --num-instances 1000000000000",
        "num_instances is 1,000,000,000,000: expected at most 100,000,000",
    ),
    ("check fuzzy-logic --num-instances -5", "num_instances is -5: expected 0 or a positive whole number"),
    ("export fuzzy-logic --num-instances 90000000", "instances of 3 splits takes 173 GB of memory"),
]


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """A machine of 16 GB, whatever this one has."""
    monkeypatch.setattr(memory, "total_memory", lambda: 16 * 10**9)


@pytest.mark.parametrize(("line", "message"), LINES)
def test_absurd_sizes_on_the_command_line(line, message, capsys, tmp_path):
    verb, *rest = line.split()
    out = ["--out", str(tmp_path / "new.parquet")] if verb in ("train", "export") else []
    assert run_verb([verb, *rest, *out]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1]
    assert len([text for text in error if text.startswith("recombine:")]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_draw_that_does_not_fit():
    with pytest.raises(InputError, match="a draw of 2 × 1,000,000,000 random numbers takes 32 GB of memory"):
        Stream("a key", rows=range(2)).bits(10**9)


def test_numbers_of_compositions():
    with pytest.raises(InputError, match=r"make 499,999,500,000 compositions: expected at most 200,000"):
        all_sets(1_000_000, 2)
    with pytest.raises(InputError, match=r"make more than 10\^\d+ compositions"):
        all_sets(2**2000, 5)
    with pytest.raises(InputError, match="2 to 4 at once, make 200,028 compositions or more"):
        all_sets(633, (2, 3, 4))
    with pytest.raises(InputError, match="3 at once, make"):
        all_multisets(200, 3)
    assert len(all_multisets(8, 4)) == 330


def test_bytes_in_words():
    assert memory.format_bytes(999) == "999 bytes"
    assert memory.format_bytes(25_300_000_000) == "25.3 GB"
    assert memory.format_bytes(10**40) == "more than 1,000 EB"
    assert memory.format_count(12_345) == "12,345"
    assert memory.format_count(10**100) == "more than 10^99"


def test_the_memory_of_a_container_counts(tmp_path, monkeypatch):
    (tmp_path / "limit").write_text("123456\n")
    monkeypatch.undo()
    monkeypatch.setattr(memory, "LIMIT_FILES", (str(tmp_path / "none"), str(tmp_path / "limit")))
    memory.total_memory.cache_clear()
    assert memory.total_memory() == 123_456
    monkeypatch.setattr(memory, "LIMIT_FILES", ())
    memory.total_memory.cache_clear()
    assert memory.total_memory() > 10**8
    memory.total_memory.cache_clear()
