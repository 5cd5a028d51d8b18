"""Damaged, empty and foreign files in a run directory: named in one line, never half-loaded, never another number."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from faults import record, recover
from mutations import NASTY_SHAPES, NASTY_TEXTS, damage
from recombine.foundation.errors import InputError, find_schema_error
from recombine.inside.result import PROBE
from recombine.training.directory import RunDirectory, encode_checkpoint
from recombine.training.schema import MetricsRow, ResultFile
from verbs import call, refuse, verbs


def change(path: Path, values: Any) -> None:
    """Replace a file by text, or values of a JSON file."""
    path.write_text(values if isinstance(values, str) else json.dumps(json.loads(path.read_text()) | values))


NESTED = "[" * 200_000
DAMAGES: list[tuple[str, Any, str, str]] = [  # a file, its new content or values, a verb, and what its one line says
    ("result.json", {"seconds": None}, "report", "result.json is damaged: seconds: expected float, got null"),
    ("result.json", {"scores": {"ood": {"r2": {"value": "x"}}}}, "report", "value: expected float, got str"),
    ("result.json", {"num_parameters": 1.5}, "report", "num_parameters: expected int, got float"),
    ("result.json", "{}", "diagnose", "result.json is damaged: scores is missing"),
    ("metrics.jsonl", '{"step": 10, "loss": "low"}\n', "report", "line 1 is damaged: loss: expected float, got str"),
    ("metrics.jsonl", NESTED, "report", ""),
    *(
        ("config.json", {part: "x"}, verb, f"config.json is damaged: {part}: expected object, got str")
        for part in ("task", "model", "training")
        for verb in ("report", "evaluate", "diagnose", "train")
    ),
    ("config.json", {"model": {"num_layers": 10**9}}, "evaluate", "expected"),
]
FOREIGN = ("{}", NESTED, "[]", "", '{"scores": {}}', "\0" * 50)


@pytest.mark.parametrize(("name", "values", "verb", "message"), DAMAGES)
def test_damage_is_named_in_one_line(name, values, verb, message, run, tmp_path):
    change(run / name, values)
    answer = call(verbs(run, tmp_path)[verb])
    assert message in answer.err
    assert answer.code == (2 if message else answer.code)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["result.json", "split.json", "metrics.jsonl", "config.json", "environment.json"])
def test_foreign_files_end_in_one_line(name, run, tmp_path):
    kept = (run / name).read_bytes()
    for content in FOREIGN:
        for verb in ("report", "diagnose", "evaluate"):
            (run / name).write_text(content)
            call(verbs(run, tmp_path)[verb])
            (run / name).write_bytes(kept)


FORMAT = {"format": "recombine-run", "format_version": 2}
LISTS = [
    ("result.json", "{}"),
    ("result.json", '{"scores": {"test": {"r2": {"value": 1}}, "ood": {"r2": {"value": 1}}}}'),
    ("config.json", json.dumps(FORMAT)),
    ("config.json", json.dumps(FORMAT | {"task": {}, "model": {}, "training": {}})),
    ("config.json", json.dumps(FORMAT | {"task": 1, "model": [], "training": ""})),
    ("config.json", {"task": {"name": "fuzzy_logic", "seed": [1]}}),
    ("config.json", {"task": {"name": 1, "seed": 0}}),
    ("split.json", "{}"),
    ("environment.json", "{}"),
    ("checkpoint.json", '{"step": "x"}'),
]


@pytest.mark.parametrize(("name", "values"), LISTS)
def test_lists_of_runs_with_a_damaged_one(name, values, run, pristine, tmp_path):
    """`runs` and `leaderboard` leave it out with a warning and list the others; `compare` ends in one line."""
    shutil.copytree(pristine, run.parent / "intact")
    change(run / name, values)
    call(verbs(run, tmp_path)["compare"])
    assert call(verbs(run, tmp_path)["leaderboard"]).code == 0
    answer = call(verbs(run, tmp_path)["runs"])
    assert "intact" in [row["run"] for row in json.loads(answer.out)["runs"]]


def test_sums_of_compositions_that_do_not_belong_together(run, pristine, tmp_path):
    shutil.copytree(pristine, run.parent / "intact")
    result = json.loads((run / "result.json").read_text())
    numerators, denominators = result["composition_sums"]["ood"]["r2"]
    for sums in ([numerators, denominators[:-1]], [numerators], [numerators, [0.0] * len(numerators)]):
        result["composition_sums"]["ood"]["r2"] = sums
        (run / "result.json").write_text(json.dumps(result))
        assert "expected numerators and as many denominators" in refuse(verbs(run, tmp_path)["compare"])
        assert call(verbs(run, tmp_path)["leaderboard"]).code == 0


def test_a_kept_probe_of_other_types_is_made_again(run, tmp_path):
    verb = verbs(run, tmp_path)["probe"]
    assert call(verb).code == 0
    kept = json.loads((run / "probe.json").read_text())
    for damaged in ({"key": kept["key"]}, kept | {"tsne_share": {}}, kept | {"decoders": 5}):
        (run / "probe.json").write_text(json.dumps(damaged))
        assert PROBE.load(RunDirectory(run), kept["key"]) is None
    assert call(verb).code == 0
    assert json.loads((run / "probe.json").read_text())["decoders"] == kept["decoders"]


def test_metrics_whose_middle_is_rubbish_are_rewound(run):
    directory = RunDirectory(run)
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows + "\0\0\0\n\0\0\n")
    with pytest.raises(InputError, match="expected JSON"):
        directory.read_metrics()
    directory.rewind_metrics(20)
    assert [row["step"] for row in directory.read_metrics()] == [10, 20]


@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "split.json", "metrics.jsonl", "checkpoint.safetensors"]
)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(name, run, tmp_path, monkeypatch):
    monkeypatch.setattr("verbs.MAX_SECONDS", 60)
    (run / name).unlink()
    os.mkfifo(run / name)
    for verb in ("evaluate", "runs", "compare"):
        answer = call(verbs(run, tmp_path)[verb])
        assert answer.code == 0 or "it is not a regular file" in answer.err


def test_paths_that_are_none(tmp_path):
    for verb in ("evaluate", "report", "probe", "diagnose"):
        assert "File name too long" in refuse([verb, str(tmp_path / ("x" * 5_000))])
    assert "it is not a regular file" in refuse(["probe", "--activations", "/dev/zero", "-q"])
    path = tmp_path / "empty.npz"
    np.savez(path, activations=np.zeros((0, 4)), labels=np.zeros((0, 2)), split=np.zeros(0, dtype="<U3"))
    assert "labels has shape (0, 2)" in refuse(["probe", "--activations", str(path), "-q"])


INFO = [
    ({"seconds": "x"}, "seconds: expected float, got str"),
    ({"seconds": 10**400}, "seconds: number out of range"),
    ({"loss": float("nan")}, "expected JSON"),
    ({"timed_steps": 1.5}, "timed_steps: expected int, got float"),
    ({"interval": {"first_step": 0, "loss_sums": [0.5]}}, "stopped by an earlier version in the middle of a logging"),
    ({"step": True}, "step: expected int, got bool"),
]


@pytest.mark.parametrize(("info", "message"), INFO)
def test_what_a_checkpoint_says_of_itself_is_checked(info, message, run, tmp_path):
    """With a digest that fits."""
    path = run / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
    stored = json.loads(header["info"]) | {"step": 10} | info
    path.write_bytes(encode_checkpoint(load_file(path), stored, config_hash=header["config"]))
    (run / "result.json").unlink()
    assert message in refuse(verbs(run, tmp_path)["train"])


@pytest.mark.parametrize("info", [NESTED, "[]", "{}", "1", '{"step": 1.5}'])
def test_the_header_of_a_checkpoint_may_be_anything(info, run, tmp_path):
    path = run / "checkpoint.safetensors"
    save_file(load_file(path), path, {"sha256": "x", "config": "y", "info": info})
    for verb in ("evaluate", "probe", "diagnose"):
        assert "checkpoint.safetensors" in refuse(verbs(run, tmp_path)[verb])


PLANNED: dict[str, Any] = {"run": "a-1", "settings": {"x": 1}, "searched": [], "seed": 0, "steps": 10}
PLANNED |= {"metric": "r2", "higher_is_better": True}
PLAN: dict[str, Any] = {"format": "recombine-sweep", "format_version": 1, "source": "here", "runs": [PLANNED]}
SCORED: dict[str, Any] = {"seconds": 1.0, "scores": {"test": {"r2": {"value": 0.5, "low": 0.4, "high": 0.6}}}}
SCORED |= {"metrics": {"r2": {"title": "R²", "higher_is_better": True}}}
STRANGE: tuple[Any, ...] = (None, "x", "\ud800", {}, [], -1, 1.5, float("inf"), 10**400, *NASTY_TEXTS, *NASTY_SHAPES)
SWEEPS = [
    *(("sweep.json", [PLAN | {"runs": [PLANNED | {key: value}]} for value in STRANGE]) for key in PLANNED),
    *(("a-1/result.json", [SCORED | {key: value} for value in STRANGE]) for key in SCORED),
    ("a-1/result.json", [SCORED | {"scores": {"test": {"r2": {"value": value}}}} for value in STRANGE]),
    ("a-1/metrics.jsonl", [{"step": value, "seconds": value} for value in STRANGE]),
    ("a-1/failure.json", [{"error": value} for value in STRANGE]),
]


@pytest.mark.parametrize(("name", "contents"), SWEEPS)
def test_any_value_in_the_files_of_a_sweep(name, contents, tmp_path):
    (tmp_path / "a-1").mkdir()
    (tmp_path / "sweep.json").write_text(json.dumps(PLAN))
    argv = ["sweep", "status", str(tmp_path)]
    assert call(argv).code == call([*argv, "--json"]).code == 0
    for content in contents:
        (tmp_path / name).write_text(json.dumps(content) + "\n")
        call(argv)
        call([*argv, "--json"])


@pytest.fixture(scope="module")
def scores(pristine):
    return json.loads(call(verbs(pristine, pristine)["evaluate"]).out)["scores"]


def test_flipped_bits_of_a_checkpoint_never_give_a_score(run, tmp_path, scores):
    """One bit in each of several places: the header, the tensors, the end."""
    path = run / "checkpoint.safetensors"
    content = path.read_bytes()
    for place in (0, 9, 300, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        answer = call(verbs(run, tmp_path)["evaluate"])
        assert "checkpoint" in answer.err or json.loads(answer.out)["scores"] == scores


def check_damage(run: Path, pristine: Path, tmp_path: Path, scores, seed: int, names) -> None:
    """Damage a file at random and call a verb; one that refused the file takes it when it is whole again."""
    for path in pristine.iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    files = [path.name for path in sorted(pristine.iterdir()) if path.name != "lock"]
    damaged, verb = [(file, verb) for file in files for verb in names][seed % (len(files) * len(names))]
    (run / damaged).write_bytes(damage((run / damaged).read_bytes(), random.Random(seed)))
    argv = verbs(run, tmp_path)[verb]
    answer = call(argv)

    def find_lost(answer) -> list[str]:
        same = answer.code == 0 and (verb != "evaluate" or json.loads(answer.out)["scores"] == scores)
        return [] if same else [f"seed {seed}, {verb}, {damaged}: {answer}"]

    if answer.code == 2:
        (run / damaged).write_bytes((pristine / damaged).read_bytes())
        recover("random damage", f"{verb}, refused", lambda: call(argv), find_lost)
        return
    assert damaged == "config.json" or find_lost(answer) == [], "another number"
    record("random damage", f"{verb}, accepted", tried=1)


@pytest.mark.parametrize("seed", range(6))
def test_random_damage(seed, run, pristine, tmp_path, scores):
    check_damage(run, pristine, tmp_path, scores, seed, ("evaluate", "train"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_400, 50))
def test_much_random_damage(first, run, pristine, tmp_path, scores):
    """400 cases. Seven files and eight verbs: each pair 7 times or more."""
    for seed in range(first, first + 50):
        check_damage(run, pristine, tmp_path, scores, seed, tuple(verbs(run, tmp_path)))


def test_the_first_fault_is_named():
    row = {"step": 1, "loss": 0.5, "learning_rate": 0.1, "seconds": 1, "scores": {"ood": {"r2": 1}}}
    assert find_schema_error(row, MetricsRow) is None
    assert find_schema_error(row | {"other": 1}, MetricsRow) is None
    assert find_schema_error(row | {"step": True}, MetricsRow) == "step: expected int, got bool"
    assert find_schema_error(row | {"scores": {"ood": [1]}}, MetricsRow) == "scores[...]: expected object, got array"
    assert find_schema_error(row | {"loss": 10**400}, MetricsRow) == "loss: number out of range"
    assert find_schema_error({"step": 1}, MetricsRow) == "loss is missing"
    assert find_schema_error({"step": 1}, MetricsRow, complete=False) is None
    assert find_schema_error([], ResultFile) == "it: expected object, got array"
    assert find_schema_error({"composition_sums": {"a": {"b": [1]}}}, ResultFile, complete=False) == (
        "composition_sums[...][...][0]: expected array, got int"
    )
