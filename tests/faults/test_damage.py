"""Damaged, empty and foreign files in a run directory: named in one line, never half-loaded, never another number."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from fuzz import call, train_once, verbs
from mutations import damage
from recombine.foundation.errors import InputError, find_schema_error
from recombine.inside.result import PROBE
from recombine.training.directory import RunDirectory
from recombine.training.schema import MetricsRow, ResultFile
from recovery import record, recover


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return train_once(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(pristine, tmp_path):
    return Path(shutil.copytree(pristine, tmp_path / "runs" / pristine.name))


@pytest.fixture(scope="module")
def scores(pristine):
    code, out, _, _ = call(verbs(pristine, pristine)["evaluate"])
    assert code == 0
    return json.loads(out)["scores"]


def refuse(argv: list[str]) -> str:
    """The line that a verb ends with."""
    code, _, err, trace = call(argv)
    assert not trace, trace
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    return err


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


RESULTS = [
    ({"seconds": None}, "result.json is damaged: seconds: expected float, got null"),
    ({"scores": {"ood": {"r2": {"value": "x"}}}}, "scores[...][...].value: expected float, got str"),
    ({"steps": 10**400}, None),
    ({"num_parameters": 1.5}, "num_parameters: expected int, got float"),
]


@pytest.mark.parametrize(("values", "message"), RESULTS)
def test_wrong_types_in_a_result(values, message, run, tmp_path):
    change(run / "result.json", **values)
    if message is not None:
        assert message in refuse(verbs(run, tmp_path)["report"])
    code, _, _, trace = call(verbs(run, tmp_path)["evaluate"])
    assert code in (0, 2)
    assert not trace


FILES = ("result.json", "split.json", "metrics.jsonl", "config.json", "environment.json")
FOREIGN = ("[]", "", '{"scores": {}}', "\0" * 50)


def end_in_one_line(run: Path, name: str, content: str, tmp_path: Path) -> None:
    kept = (run / name).read_bytes()
    (run / name).write_text(content)
    for verb in (
        ["report", str(run), "-o", str(tmp_path / "x.html"), "--no-gallery"],
        ["diagnose", str(run), "-q", "--num-instances", "30"],
    ):
        if verb[0] == "report" or name in ("result.json", "split.json", "config.json"):
            code, _, err, trace = call(verb)
            assert not trace, trace
            assert code in (0, 2)
            complaints = [line for line in err.splitlines() if line.startswith("recombine:")]
            assert len(complaints) == (0 if code == 0 else 1)
    (run / name).write_bytes(kept)


@pytest.mark.parametrize(
    ("name", "content"), [("result.json", "{}"), ("split.json", "{}"), ("metrics.jsonl", "[" * 10**5)]
)
def test_foreign_files_end_in_one_line(name, content, run, tmp_path):
    end_in_one_line(run, name, content, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_foreign_files_end_in_one_line(name, run, tmp_path):
    for content in ("{}", "[" * 200_000, *FOREIGN):
        end_in_one_line(run, name, content, tmp_path)


LISTS = [
    ("result.json", "{}"),
    ("result.json", '{"scores": {"test": {"r2": {"value": 1}}, "ood": {"r2": {"value": 1}}}}'),
    ("result.json", "[]"),
    ("config.json", '{"format": "recombine-run", "format_version": 2}'),
    ("config.json", '{"format": "recombine-run", "format_version": 2, "task": {}, "model": {}, "training": {}}'),
    ("config.json", '{"format": "recombine-run", "format_version": 2, "task": 1, "model": [], "training": ""}'),
    ("split.json", "{}"),
    ("environment.json", "{}"),
    ("checkpoint.json", '{"step": "x"}'),
]


@pytest.mark.parametrize(("name", "content"), LISTS)
def test_lists_of_runs_with_a_damaged_one(name, content, run, pristine, tmp_path):
    """`runs` and `leaderboard` leave it out with a warning and list the others; `compare` ends in one line."""
    shutil.copytree(pristine, run.parent / "intact")
    (run / name).write_text(content)
    for verb in ("runs", "compare", "leaderboard"):
        code, _, err, trace = call(verbs(run, tmp_path)[verb])
        assert not trace, trace
        assert code == 0 or (verb == "compare" and len(err.strip().splitlines()) == 1), err


def test_sums_of_compositions_that_do_not_belong_together(run, pristine, tmp_path):
    shutil.copytree(pristine, run.parent / "intact")
    result = json.loads((run / "result.json").read_text())
    numerators, denominators = result["composition_sums"]["ood"]["r2"]
    for sums in ([numerators, denominators[:-1]], [numerators], [numerators, [0.0] * len(numerators)]):
        result["composition_sums"]["ood"]["r2"] = sums
        (run / "result.json").write_text(json.dumps(result))
        assert "expected numerators and as many denominators" in refuse(verbs(run, tmp_path)["compare"])
        code, _, _, trace = call(verbs(run, tmp_path)["leaderboard"])
        assert (code, trace) == (0, "")


@pytest.mark.parametrize("verb", ["report", "evaluate", "diagnose", "train"])
def test_parts_of_a_configuration_that_are_no_objects(verb, run, tmp_path):
    for part in ("task", "model", "training"):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {part: "x"}))
        assert f"config.json is damaged: {part}: expected object, got str" in refuse(verbs(run, tmp_path)[verb])
        (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("name", "value"), [("seed", [1]), ("seed", {}), ("name", 1)])
def test_a_configuration_that_is_only_listed(name, value, run, tmp_path, caplog):
    config = json.loads((run / "config.json").read_text())
    config["task"][name] = value
    (run / "config.json").write_text(json.dumps(config))
    code, out, _, trace = call([*verbs(run, tmp_path)["runs"], "--json"])
    assert (code, trace) == (0, "")
    assert json.loads(out) == {"runs": []}
    assert "config.json is damaged" in caplog.text


def test_a_kept_probe_of_other_types_is_made_again(run, tmp_path):
    verb = verbs(run, tmp_path)["probe"]
    assert call(verb)[0] == 0
    kept = json.loads((run / "probe.json").read_text())
    for damaged in ({"key": kept["key"]}, kept | {"tsne_share": {}}, kept | {"decoders": 5}):
        assert PROBE.load(RunDirectory(run), kept["key"]) is not None
        (run / "probe.json").write_text(json.dumps(damaged))
        assert PROBE.load(RunDirectory(run), kept["key"]) is None
        (run / "probe.json").write_text(json.dumps(kept))
    (run / "probe.json").write_text(json.dumps(damaged))
    code, _, _, trace = call(verb)
    assert (code, trace) == (0, "")
    assert json.loads((run / "probe.json").read_text())["decoders"] == kept["decoders"]


def test_a_loss_that_is_text(run, tmp_path):
    (run / "metrics.jsonl").write_text('{"step": 10, "loss": "low"}\n')
    assert "metrics.jsonl line 1 is damaged: loss: expected float, got str" in refuse(verbs(run, tmp_path)["report"])


def test_metrics_whose_middle_is_rubbish_are_rewound(run):
    directory = RunDirectory(run)
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows + "\0\0\0\n\0\0\n")
    with pytest.raises(InputError, match="expected JSON"):
        directory.read_metrics()
    directory.rewind_metrics(20)
    assert [row["step"] for row in directory.read_metrics()] == [10, 20]


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_absurd_sizes_in_a_configuration(verb, run, tmp_path):
    """10^9 layers are refused before any of them is built."""
    config = json.loads((run / "config.json").read_text())
    config["model"]["num_layers"] = 10**9
    (run / "config.json").write_text(json.dumps(config))
    code, _, err, trace = call(verbs(run, tmp_path)[verb])
    assert not trace, trace
    if verb == "evaluate":
        assert code == 2
        assert "belongs to another run" in err


def test_a_path_of_five_thousand_characters(tmp_path):
    for verb in ("evaluate", "report", "probe", "diagnose"):
        assert "File name too long" in refuse([verb, str(tmp_path / ("x" * 5_000))])


def test_activations_without_rows(tmp_path):
    path = tmp_path / "empty.npz"
    np.savez(path, activations=np.zeros((0, 4)), labels=np.zeros((0, 2)), split=np.zeros(0, dtype="<U3"))
    assert "labels has shape (0, 2)" in refuse(["probe", "--activations", str(path), "-q"])


def test_flipped_bits_of_a_checkpoint_never_give_a_score(run, tmp_path, scores):
    """One bit in each of several places: the header, the tensors, the end."""
    path = run / "checkpoint.safetensors"
    content = path.read_bytes()
    for place in (0, 9, 300, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        code, out, err, trace = call(verbs(run, tmp_path)["evaluate"])
        assert not trace, trace
        assert (code == 2 and "checkpoint" in err) or json.loads(out)["scores"] == scores


def check_damage(run: Path, pristine: Path, tmp_path: Path, scores, seed: int, names) -> None:
    draw = random.Random(seed)
    for path in pristine.iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    files = [path.name for path in sorted(pristine.iterdir()) if path.name != "lock"]
    damaged, verb = [(file, verb) for file in files for verb in names][seed % (len(files) * len(names))]
    (run / damaged).write_bytes(damage((run / damaged).read_bytes(), draw))
    code, out, err, trace = call(verbs(run, tmp_path)[verb])
    assert not trace, f"seed {seed}, {verb}, {damaged}: {trace}"
    assert code in (0, 2), f"seed {seed}, {verb}, {damaged}: {err}"
    if code == 0 and verb == "evaluate" and damaged != "config.json":
        assert json.loads(out)["scores"] == scores, f"seed {seed}: another number after damage to {damaged}"
    call_again(run, pristine, tmp_path, scores, (damaged, verb, code))


def call_again(run: Path, pristine: Path, tmp_path: Path, scores, case: tuple[str, str, int | None]) -> None:
    """A verb that refused a damaged file takes it when it is whole again, and gives the same scores."""
    damaged, verb, code = case
    if code == 0:
        record("random damage", f"{verb}, accepted", tried=1)
        return
    (run / damaged).write_bytes((pristine / damaged).read_bytes())

    def find_lost(outcome: tuple[int | None, str, str, str]) -> list[str]:
        same = outcome[0] == 0 and (verb != "evaluate" or json.loads(outcome[1])["scores"] == scores)
        return [] if same else [f"{damaged}: {outcome[2]}"]

    recover("random damage", f"{verb}, refused", lambda: call(verbs(run, tmp_path)[verb]), find_lost)


@pytest.mark.parametrize("seed", range(6))
def test_random_damage(seed, run, pristine, tmp_path, scores):
    check_damage(run, pristine, tmp_path, scores, seed, ("evaluate", "train"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_400, 50))
def test_much_random_damage(first, run, pristine, tmp_path, scores):
    """400 cases. Seven files and four verbs: each pair 14 times or more."""
    for seed in range(first, first + 50):
        check_damage(run, pristine, tmp_path, scores, seed, ("evaluate", "report", "train", "diagnose"))


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
