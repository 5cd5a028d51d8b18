"""The command line as a user types it: real processes, real files, every complaint one line with exit code 2."""

import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

from recombine.cli.flags import REFERENCE_LEGEND, score_table, split_legend
from recombine.cli.main import limit_spinning
from recombine.cli.main import run as run_verb
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.score import describe_splits

TINY = ["--num-examples", "4", "--embedding-dim", "16", "--kqv-dim", "8", "--mlp-dim", "16", "--num-heads", "4"]
TRAIN = [
    "train",
    "fuzzy-logic",
    "--scale",
    "paper",
    *TINY,
    "--steps",
    "30",
    "--batch-size",
    "8",
    "--evaluation-instances",
    "100",
]


def recombine(*arguments: str, cwd=None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recombine.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    done = recombine(*TRAIN, "--attention", "hyla", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_train_writes_a_run_and_prints_its_path_last(trained):
    folder, done = trained
    path = folder / done.stdout.splitlines()[-1]
    assert path.parent == folder / "runs"
    assert path.name.startswith("fuzzy-logic-hyla-")
    assert (path / "result.json").exists()
    assert "95 % interval" in done.stdout
    assert "steps/s" in done.stdout


def test_a_finished_run_is_printed_in_every_form(trained, capsys):
    again = [*TRAIN, "--out", str(trained[0] / "runs")]
    assert run_verb(again) == 0
    assert "was finished already; below are its scores" in capsys.readouterr().err
    assert run_verb([*again, "-q"]) == 0
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), captured.err) == (1, "")
    assert run_verb([*again, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    keys = {"task", "model", "num_parameters", "split_sha256", "steps", "seconds", "steps_per_second", "scores"}
    assert keys <= set(result)
    assert set(result["scores"]["ood"]["r2"]) == {"value", "low", "high", "chance", "ceiling", "agnostic"}


def test_evaluate(trained, capsys):
    folder, _ = trained
    (path,) = (folder / "runs").iterdir()
    assert run_verb(["evaluate", str(path), "--num-instances", "100", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["scores"] == json.loads((path / "result.json").read_text())["scores"]
    assert run_verb(["evaluate", str(path), "--splits", "ood", "--num-instances", "50"]) == 0
    assert "ood" in capsys.readouterr().out


def test_tasks_show_check(capsys):
    assert run_verb(["tasks", "--json"]) == 0
    assert "fuzzy_logic" in json.loads(capsys.readouterr().out)
    assert run_verb(["show", "fuzzy-logic", "--num-examples", "4"]) == 0
    assert "to be predicted" in capsys.readouterr().out
    assert run_verb(["show", "fuzzy-logic", "--json", "--split", "unknown"]) == 0
    assert min(json.loads(capsys.readouterr().out)["composition"]) >= 12
    assert run_verb(["check", "fuzzy-logic", "--held-out", "0.7", "--num-instances", "64", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["certificate"]["covered"]
    assert value["references"]["ood"]["r2"]["ceiling"] == 1
    assert run_verb(["check", "fuzzy-logic", "--num-instances", "0"]) == 0
    assert value["certificate"]["sha256"] in capsys.readouterr().out.replace("│", "").replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("arguments", "caption", "row"),
    [
        (["fuzzy-logic"], "ood: held-out compositions of trained modules", "6"),
        (["hyperteacher", "--scale", "paper"], "unknown: more modules at once than in training", "1820"),
        (
            ["hyperteacher", "--scale", "paper", "--support", "non_compositional"],
            "ood: held-out compositions, with modules never trained",
            "1820",
        ),
        (["sequence-teacher"], "ood: longer sequences than trained, 11 to 100 tokens", "0"),
    ],
)
def test_check_says_what_its_splits_are(arguments, caption, row, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert run_verb(["check", *arguments, "--num-instances", "50"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert caption in words
    assert ("unknown: " in words) == (row != "0")
    assert f"compositions of the split unknown {row} " in words


def test_a_table_claims_of_held_out_compositions_only_what_is_known():
    scores: dict[str, dict[str, Any]] = {split: {} for split in ("test", "ood")}
    tasks = (FuzzyLogic(), Hyperteacher(support="non_compositional"), SequenceTeacher())
    known = [*map(describe_splits, tasks), None]
    legends = [split_legend(scores, splits) for splits in known]
    assert ["of trained modules" in legend for legend in legends] == [True, False, False, False]
    assert ["compositions" in legend.splitlines()[1] for legend in legends] == [True, True, False, True]
    for splits, legend in zip(known, legends, strict=True):
        assert score_table(scores, splits=splits).note == f"{legend}\n{REFERENCE_LEGEND}"


def test_the_task_of_a_run_can_be_inspected(trained, capsys):
    folder, _ = trained
    (path,) = (folder / "runs").iterdir()
    assert run_verb(["show", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["inputs"]) == 4  # tokens, as in the run
    assert run_verb(["check", str(path), "--num-instances", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["certificate"]["sha256"][:4] == "960f"
    assert run_verb(["check", str(path), "--scale", "tiny"]) == 2
    assert "expected one of them, because a run has its own sizes" in capsys.readouterr().err


def test_an_interrupted_training_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("recombine.cli.train.train_run", interrupt)
    assert run_verb([*TRAIN, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("recombine: interrupted; the same command resumes\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frob"], "unknown verb 'frob': expected one of tasks, show"),
        (["train", "chess"], "unknown task 'chess': expected one of fuzzy-logic, goal-grid"),
        (
            ["train", "fuzzy-logic", "--attention", "hyper"],
            "unknown value of --attention 'hyper': expected one of softmax, ",
        ),
        (["train", "fuzzy-logic", "--steps", "many"], "--steps is 'many': expected a whole number; see"),
        (["train", "fuzzy-logic", "--learning-rate", "x"], "--learning-rate is 'x': expected a number; see"),
        (["train", "fuzzy-logic", "--steps"], "--steps: expected one argument; see"),
        (["train", "fuzzy-logic", "more"], "unexpected argument 'more'; see"),
        (["train", "fuzzy-logic", "--step", "10"], "unknown flag --step (did you mean --steps?); see recombine train"),
        (["train", "fuzy-logic"], "package.module:NAME; did you mean fuzzy-logic?"),
        (["report", "runs", "--otu", "x"], "unknown flag --otu (did you mean --out?); see recombine report"),
        (["reproduce", "demo", "--scale", "tinny"], "expected one of tiny, small, paper; did you mean tiny?; see"),
        (["chekc", "sraven"], "unknown verb 'chekc': did you mean check?"),
        (["train", "Fuzzy-Logic"], "package.module:NAME; did you mean fuzzy-logic?"),
        (["train", "fuzzy-logic", "--lr", "1"], "unknown flag --lr (did you mean --learning-rate?)"),
        (["train", "fuzzy-logic", "--epochs", "1"], "unknown flag --epochs (did you mean --steps?)"),
        (["train", "fuzzy-logic", "--batchsize", "1"], "(did you mean --batch-size?); see recombine train fuzzy-logic"),
        (["check", "fuzzy-logic", "--held-out", "60"], "strictly between 0 and 1; did you mean 0.6?"),
        (["train", "fuzzy-logic", "--steps", "1.5e0"], "--steps is '1.5e0': expected a whole number"),
        (["reproduce", "sravn"], "unknown experiment 'sravn': did you mean sraven?"),
        (["compare", "a"], "RUN is missing: expected run directory of a finished run on the same task and seed; see"),
        (["train", "fuzzy-logic", "--steps", "0"], "steps is 0: expected a whole number of at least 1"),
        (["train", "fuzzy-logic", "--frobnicate", "1"], "unknown flag --frobnicate; see"),
        (
            ["train", "fuzzy-logic", "--scale", "huge"],
            "unknown value of --scale 'huge': expected one of tiny, small, paper; see",
        ),
        (["train", "fuzzy-logic", "--model", "oracle"], "unknown model 'oracle': expected one of "),
        (["train", "fuzzy-logic", "--num-heads", "3"], "kqv_dim 16 is not divisible by num_heads 3"),
        (["train", "fuzzy-logic", "--device", "abacus"], "device 'abacus' is not available"),
        (
            ["check", "fuzzy-logic", "--held-out", "1.2"],
            "held-out fraction is 1.2: expected a number strictly between 0 and 1",
        ),
        (["check", "fuzzy-logic", "--held-out", "0.95"], "expected at least 6"),
        (
            ["show", "fuzzy-logic", "--split", "oops"],
            "unknown split 'oops': expected one of train, test, ood",
        ),
        (["evaluate", "nowhere"], "run directory 'nowhere' does not exist"),
        (["evaluate", "."], "config.json does not exist"),
        (["evaluate"], "RUN is missing: expected"),
        (["reproduce", "everything"], "unknown experiment 'everything': expected one of fuzzy-logic, sraven"),
        (["report", "nowhere"], "does not exist: expected a folder that"),
        (
            ["export", "fuzzy-logic", "-o", "/dev/null/rows.parquet", "--num-instances", "3"],
            "cannot write '/dev/null/rows.parquet'",
        ),
        (["export", "fuzzy-logic", "--num-instances", "0"], "num_instances is 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_complaints_are_one_line_and_write_nothing(arguments, message, tmp_path, monkeypatch, capsys, unchecked):
    monkeypatch.chdir(tmp_path)
    assert run_verb(arguments) == 2
    captured = capsys.readouterr()
    assert message.lower() in captured.err.lower()
    assert captured.err.startswith("recombine: ")
    assert len(captured.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_arguments_and_version(capsys):
    assert run_verb([]) == 2
    assert "usage: recombine" in capsys.readouterr().out
    assert run_verb(["--version"]) == 0
    assert capsys.readouterr().out.startswith("recombine 0.")
    assert run_verb(["train"]) == 2
    assert "TASK is one of fuzzy-logic" in capsys.readouterr().out


def test_verbs_of_other_packages(tmp_path, capsys, monkeypatch):
    """An entry point adds a verb; the list of verbs names it without importing it."""
    (tmp_path / "fancy").mkdir()
    (tmp_path / "fancy" / "__init__.py").write_text("raise ImportError('imported')\n")
    verb = 'def dance(argv):\n    """Dance with a run.\n\n    More.\n    """\n'
    (tmp_path / "fancy" / "verbs.py").write_text(verb)
    entry = metadata.EntryPoint(name="dance", value="fancy.verbs:dance", group="recombine.verbs")
    monkeypatch.setattr("recombine.cli.main.installed_verbs", lambda: {"dance": entry})
    monkeypatch.syspath_prepend(tmp_path)
    assert run_verb(["--help"]) == 0
    assert "\n  dance        from fancy\n" in capsys.readouterr().out
    assert run_verb(["danse"]) == 2
    assert "did you mean dance or diagnose?" in capsys.readouterr().err
    (tmp_path / "fancy" / "__init__.py").write_text("")
    (tmp_path / "fancy" / "verbs.py").write_text(f"{verb}    print('dances', argv)\n")
    assert run_verb(["dance", "slowly"]) == 0
    assert capsys.readouterr().out == "dances ['slowly']\n"


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_waiting_threads_sleep_unless_the_user_says_otherwise(set_by_user, expected, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_torch_is_not_loaded_before_the_verb():
    # its threads read how they wait when it is loaded
    code = "import sys, recombine.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
