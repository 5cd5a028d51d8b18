"""Any arguments, any JSON in a configuration, any bytes in a file: exit code 0 or 2, one line, no traceback, in limits."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import recombine
from command_lines import command_lines, find_trouble, in_limits
from faults import record
from mutations import NASTY
from recombine.foundation.errors import InputError
from recombine.tasks import TASKS
from recombine.training.benchmark import load_config
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory

SHARED = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
FEW, SOME, MANY = (settings(max_examples=number, **SHARED) for number in (30, 40, 60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the calls work."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def paths(tmp_path_factory, pristine) -> list[str]:
    """All kinds of files and folders."""
    place = tmp_path_factory.mktemp("files")
    (place / "text.txt").write_text("some text\n" * 50)
    (place / "table.csv").write_text("instance,prediction\na,0.5\n")
    (place / "empty.jsonl").write_bytes(b"")
    (place / "plan.py").write_text("def runs():\n    return []\n")
    named = [str(place / name) for name in ("text.txt", "table.csv", "empty.jsonl", "plan.py", "none", "none/deeper")]
    return [*named, str(place), str(pristine), "/dev/null", ".", "", "x" * 5_000]


@FEW
@given(data=st.data())
def test_any_command_line(data, paths, pristine, folder):
    argv = data.draw(command_lines(paths, [str(pristine)]))
    assert find_trouble(argv, folder) is None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_many_command_lines(part, paths, pristine, folder):
    """180 in all. Each part has a seed of its own; without one, all parts would try the same command lines."""
    tried: list[list[str]] = []

    @seed(part)
    @MANY
    @given(argv=command_lines(paths, [str(pristine)]))
    def attempt(argv: list[str]) -> None:
        tried.append(argv)
        assert find_trouble(argv, folder) is None

    attempt()
    record("command lines", f"seed {part}", tried=len(tried))


# what JSON can say, and what Python's reader takes besides: NaN, infinity, numbers of any length
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES: list[tuple[str, str | None]] = [(role, None) for role in ("task", "model", "training")]
PLACES += [
    (role, field.name)
    for role in ("task", "model", "training")
    for field in fields(getattr(default_run("sraven", "paper"), role))
]
PLACES += [
    ("format", None),
    ("format_version", None),
    ("origins", None),
    ("task", "name"),
    ("model", "kind"),
    ("x", None),
]


def load(run: Path) -> None:
    message = ""
    (run / "checkpoint.safetensors").unlink(missing_ok=True)  # which has the hash of the configuration
    try:
        assert load_config(RunDirectory.open(run)).directory_name
    except InputError as error:
        message = str(error)
    assert "\n" not in message


@settings(max_examples=200, **SHARED)
@given(value=JSON)
@pytest.mark.usefixtures("unchecked")
def test_any_json_as_a_configuration(value, run):
    (run / "config.json").write_text(json.dumps(value))
    load(run)


@settings(max_examples=300, **SHARED)
@given(place=st.sampled_from(PLACES), value=JSON, task=st.sampled_from(sorted(TASKS)))
@pytest.mark.usefixtures("unchecked")
def test_any_json_in_a_configuration(place, value, task, run):
    config: dict[str, Any] = {"format": "recombine-run", "format_version": 2, **default_run(task, "tiny").as_dict()}
    (config if place[1] is None else config[place[0]])[place[1] or place[0]] = value
    (run / "config.json").write_text(json.dumps(config))
    load(run)


def refuse_or_return(work: Any) -> Any:
    """A call of the public API: what it returns does not matter here, and an InputError is an answer."""

    def attempt() -> int:
        try:
            work()
        except InputError as error:
            return 2 if "\n" not in str(error) else 3
        return 0

    return attempt


VALUES = st.one_of(st.integers(0, 4), st.sampled_from(NASTY), st.floats(0, 1), st.booleans(), st.text(max_size=5))


@SOME
@given(name=st.sampled_from([name for name in sorted(TASKS) if name != "language"]), data=st.data())
def test_any_settings_of_a_task(name, data, folder):
    """Constructed, split and sampled, or refused."""
    default = default_run(name, "tiny").task
    chosen = data.draw(
        st.dictionaries(st.sampled_from([field.name for field in fields(default)]), VALUES, min_size=1, max_size=2)
    )
    split = data.draw(st.sampled_from(["train", "ood", "x", 3]))
    index, rows = data.draw(st.sampled_from([(0, 2), (-1, 1), (10**30, 1), (0, 0), (0, 10**12), (0.5, 1), ("x", 1)]))

    def work() -> None:
        replace(default, **chosen).sample(split, index, batch_size=rows)

    code, said = in_limits(refuse_or_return(work), folder)
    assert code in (0, 2), said


PREDICTIONS = [
    lambda x: x * math.nan,
    lambda x: (x, x),
    lambda x: None,
    lambda x: x[:1],
    lambda x: x.sum(),
    lambda x: "text",
    lambda x: x.to(torch.complex64),
    lambda x: x.bool(),
    lambda x: x.detach().numpy(),
    lambda x: {"logits": x},
    lambda x: torch.zeros(len(x), 10**6),
    lambda x: torch.full((len(x), 1, 1), torch.inf),
    lambda x: torch.zeros(len(x), 1, 1, requires_grad=True),
]


@SOME
@given(
    predict=st.sampled_from(PREDICTIONS),
    splits=st.sampled_from([("ood",), (), ("x",), "ood", None, (1,)]),
    num_instances=st.sampled_from([4, 0, -1, 10**12, 1.5, "x", None]),
)
def test_any_predictions_and_sizes_of_a_score(predict, splits, num_instances, folder):
    task = recombine.FuzzyLogic(num_examples=4)

    def work() -> None:
        chosen = {} if splits is None else {"splits": splits}
        recombine.score(predict, task, num_instances=num_instances, **chosen)

    code, said = in_limits(refuse_or_return(work), folder)
    assert code in (0, 2), said
