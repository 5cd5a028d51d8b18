"""Damaged, edited, swapped and foreign files in a run directory: named in one line, never half-loaded, never another number."""

import json
import os
import random
import shutil
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from faults import record, recover
from mutations import damage
from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import add_digest
from recombine.training.directory import RunDirectory
from recombine.training.schema import MetricsRow, ResultFile
from verbs import call, refuse, train_once, verbs

SEALED = ("config.json", "result.json", "split.json", "environment.json", "checkpoint.json")
READERS = {  # verbs that need the file
    "result.json": ("train", "report", "diagnose", "compare"),
    "split.json": ("diagnose",),
    "environment.json": ("report",),
    "metrics.jsonl": ("report",),
    "checkpoint.safetensors": ("evaluate", "probe"),
}


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """A run of the same task with another seed."""
    return train_once(tmp_path_factory.mktemp("other"), "--seed", "1")


def as_before_digests(run: Path) -> Path:
    """The run as versions without digests wrote it."""
    for name in SEALED:
        content = json.loads((run / name).read_text())
        content.pop("digest")
        (run / name).write_text(json.dumps(content))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        del row["digest"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def edit(path: Path, *keys: str, value: object) -> None:
    """Change a value in a file, as with an editor."""
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(content, indent=2))


@pytest.mark.parametrize("name", READERS)
def test_the_file_of_another_run_is_refused(name, run, other, tmp_path):
    shutil.copy(other / name, run / name)
    for verb in READERS[name]:
        assert f"{name} belongs to another run" in refuse(verbs(run, tmp_path)[verb]).replace(" line 1", "")


@pytest.mark.parametrize("name", ["probe.json", "diagnosis.json"])
def test_what_was_measured_in_another_run_is_measured_again(name, run, other, tmp_path):
    for each in (run, other):
        assert call(verbs(each, tmp_path)["diagnose"]).code == 0
    kept = (run / name).read_bytes()
    shutil.copy(other / name, run / name)
    if name == "diagnosis.json":
        assert call(verbs(run, tmp_path)["report"]).code == 0
        assert "belongs to another run" in (tmp_path / "report.html").read_text()
    assert call(verbs(run, tmp_path)["diagnose"]).code == 0
    assert json.loads((run / name).read_text()).keys() == json.loads(kept).keys()
    assert call(verbs(run, tmp_path)["report"]).code == 0


EDITS = [
    ("result.json", ("scores", "ood", "r2", "value"), 0.99, "report"),
    ("result.json", ("scores", "ood", "r2", "low"), 0.98, "diagnose"),
    ("result.json", ("evaluation_instances",), 41, "train"),
    ("config.json", ("task", "seed"), 7, "report"),
    ("config.json", ("training", "learning_rate"), 0.5, "evaluate"),
    ("split.json", ("certificate", "covered"), False, "diagnose"),
]


@pytest.mark.parametrize(("name", "keys", "value", "verb"), EDITS)
def test_an_edited_file_is_refused(name, keys, value, verb, run, tmp_path):
    edit(run / name, *keys, value=value)
    assert f"{name} is damaged: its content does not match its digest" in refuse(verbs(run, tmp_path)[verb])


def test_a_run_from_before_digests_is_read_and_checked_by_what_it_has(run, scores, tmp_path):
    as_before_digests(run)
    for argv in verbs(run, tmp_path).values():
        assert call(argv).code == 0
    assert json.loads(call(verbs(run, tmp_path)["evaluate"]).out)["scores"] == scores
    kept = (run / "config.json").read_bytes()
    edit(run / "config.json", "training", "learning_rate", value=0.5)
    assert "holds another configuration than the run was trained with" in refuse(verbs(run, tmp_path)["report"])
    (run / "config.json").write_bytes(kept)
    edit(run / "result.json", "scores", "ood", "r2", "value", value=0.99)
    for verb in ("report", "compare", "train"):
        assert "scores.ood.r2 is 0.99, and its sums give" in refuse(verbs(run, tmp_path)[verb])


def test_scores_that_contradict_their_sums_are_refused_whatever_the_digest_says(run, tmp_path):
    edit(run / "result.json", "scores", "ood", "r2", "value", value=0.99)
    content = json.loads((run / "result.json").read_text())
    del content["digest"]
    (run / "result.json").write_text(add_digest(json.dumps(content), RunDirectory(run).identity))
    assert "scores.ood.r2 is 0.99, and its sums give" in refuse(verbs(run, tmp_path)["report"])


def test_rows_of_another_run_or_another_order_are_not_resumed_from(run, other):
    directory, steps = RunDirectory(run), [10, 20]
    rows, foreign = ((each / "metrics.jsonl").read_bytes().splitlines(keepends=True) for each in (run, other))
    for damaged in ([rows[0], foreign[1]], [rows[0], rows[0]], [rows[0], b"\0\0\n"], [rows[0], b"9" * (1 << 21)]):
        (run / "metrics.jsonl").write_bytes(b"".join(damaged))
        with pytest.raises(InputError, match=r"metrics.jsonl line 2"):
            directory.read_metrics()
        directory.rewind_metrics(20)
        assert (run / "metrics.jsonl").read_bytes() == rows[0]
    (run / "metrics.jsonl").write_bytes(b"".join(rows) + b'{"step": 3')
    assert [row["step"] for row in directory.read_metrics()] == steps


def test_rows_are_read_one_at_a_time(run):
    """Memory does not grow with the file."""
    directory = RunDirectory(run)
    (run / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(100_000)))
    tracemalloc.start()
    assert sum(1 for _ in directory.iterate_metrics()) == 100_000
    directory.rewind_metrics(50_000)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert (run / "metrics.jsonl").read_bytes().endswith(b'"step": 50000, "loss": 0.5}\n')


def test_a_diagnosis_on_more_instances_probes_again(run, tmp_path):
    for flags, expected in ((["--num-instances", "30"], 30), ([], 30), (["--num-instances", "40"], 40)):
        assert call(["diagnose", str(run), "-q", *flags]).code == 0
        assert RunDirectory(run).read_json("probe.json")["num_instances"] == expected


@pytest.mark.parametrize("damaged", [b"{", b"[]", b"[" * 200_000, b"\0" * 50, b'{"scores": {}}'])
def test_lists_of_runs_leave_a_damaged_one_out(damaged, run, pristine, tmp_path):
    shutil.copytree(pristine, run.parent / "intact")
    for name in ("result.json", "config.json"):
        kept = (run / name).read_bytes()
        (run / name).write_bytes(damaged)
        call(verbs(run, tmp_path)["compare"])
        assert call(verbs(run, tmp_path)["leaderboard"]).code == 0
        answer = call(verbs(run, tmp_path)["runs"])
        assert "intact" in [row["run"] for row in json.loads(answer.out)["runs"]]
        (run / name).write_bytes(kept)


PLANNED = {"settings": {"x": 1}, "searched": [], "seed": 0, "steps": 20, "metric": "r2", "higher_is_better": True}


def make_sweep(folder: Path, *runs: Path) -> list[str]:
    """The plan of a sweep over run directories in a folder; returns the verb that shows it."""
    planned = [{"run": run.name, **PLANNED} for run in runs]
    plan = {"format": "recombine-sweep", "format_version": 1, "source": "here", "runs": planned}
    (folder / "sweep.json").write_text(json.dumps(plan))
    return ["sweep", "status", str(folder), "--json"]


def states(argv: list[str]) -> dict[str, str]:
    return {run["run"]: run["state"] for run in json.loads(call(argv).out)["runs"]}


def test_one_damaged_run_does_not_stop_a_sweep(run, pristine, other):
    shutil.copytree(other, run.parent / other.name)
    argv = make_sweep(run.parent, run, run.parent / other.name)
    for content in ((run / "result.json").read_bytes()[:-9], (other / "result.json").read_bytes(), b"[]"):
        (run / "result.json").write_bytes(content)
        assert states(argv) == {run.name: "failed", other.name: "finished"}


@pytest.mark.parametrize("age", [0, -86_400])
def test_a_sign_of_life_does_not_hide_the_result_of_a_finished_run(age, run):
    (run.parent / ".running").mkdir()
    sign = run.parent / ".running" / f"{run.name}.json"
    sign.write_text("{}")
    os.utime(sign, (time.time() - age,) * 2)
    assert states(make_sweep(run.parent, run)) == {run.name: "finished"}
    (run / "result.json").unlink()
    assert states(make_sweep(run.parent, run)) == {run.name: "waiting" if age else "running"}


def test_links_in_the_folder_of_a_sweep_are_not_followed(run, tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / run.name).symlink_to(run)
    assert states(make_sweep(tmp_path / "sweep", run)) == {run.name: "failed"}


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl", "checkpoint.safetensors"])
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


@pytest.mark.parametrize("info", ["[" * 200_000, "[]", "{}", "1", '{"step": 1.5}'])
def test_the_header_of_a_checkpoint_may_be_anything(info, run, tmp_path):
    path = run / "checkpoint.safetensors"
    save_file(load_file(path), path, {"sha256": "x", "config": "y", "info": info})
    for verb in ("evaluate", "probe", "diagnose"):
        assert "checkpoint.safetensors" in refuse(verbs(run, tmp_path)[verb])


@pytest.fixture(scope="module")
def scores(pristine, tmp_path_factory):
    """What `evaluate` prints for an intact run."""
    return json.loads(call(verbs(pristine, tmp_path_factory.mktemp("scratch"))["evaluate"]).out)["scores"]


def test_a_flipped_bit_in_a_checkpoint_never_changes_a_score(run, scores, tmp_path):
    """In the header, the tensors and the end."""
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
@pytest.mark.parametrize("first", range(1_000, 1_120, 30))
def test_much_random_damage(first, run, pristine, tmp_path, scores):
    """120 cases: each pair of seven files and eight verbs twice or more."""
    for seed in range(first, first + 30):
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
