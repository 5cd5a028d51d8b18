"""A task and a model from outside the package go through every verb: from a file, an installed package, and as objects."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import recombine
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.models.base import find_model, find_task, version_of
from recombine.sweeps.local import LocalEngine
from recombine.sweeps.run import train_all
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig, default_run
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = f"{EXAMPLES / 'own_task.py'}:Waves"
MODEL = f"{EXAMPLES / 'own_model.py'}:AveragingConfig"
SIZES = ["--num-waves", "4", "--num-examples", "4", "--hidden-dim", "8", "--steps", "20", "--batch-size", "8"]
TRAIN = ["train", TASK, "--model", MODEL, *SIZES, "--evaluation-instances", "60"]


@pytest.fixture
def verb(tmp_path, monkeypatch, capsys):
    """Run a verb in an empty folder; returns what it printed, or its error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, fails: bool = False) -> str:
        code = run_verb(list(arguments))
        captured = capsys.readouterr()
        assert code == (2 if fails else 0), captured.err
        return captured.err if fails else captured.out

    return run


def test_every_verb(verb, tmp_path):
    code = ["--code", TASK, "--code", MODEL]
    assert "sin(" in verb("show", TASK, "--num-waves", "4", "--num-examples", "4")
    checked = json.loads(verb("check", TASK, "--num-instances", "50", "--json"))
    assert checked["references"]["ood"]["r2"]["ceiling"] == pytest.approx(1)
    exported = verb("export", TASK, "--num-instances", "5", "-o", "rows.parquet")
    assert f"10 rows of {TASK} (test, ood)" in " ".join(exported.split())
    run = verb(*TRAIN, "-q").strip()
    assert run.startswith("runs/waves-averaging-")
    origins = json.loads((tmp_path / run / "config.json").read_text())["origins"]
    assert origins == {"task": TASK, "model": MODEL}
    assert verb(*TRAIN, "-q").strip() == run  # finished already
    refused = verb("evaluate", run, fails=True)
    assert "task 'waves' is not part of this package: expected one of fuzzy_logic, goal_grid" in refused
    assert f"--code {TASK}" in refused
    scores = json.loads(verb("evaluate", run, "--num-instances", "60", "--json", *code))["scores"]
    assert scores == json.loads((tmp_path / run / "result.json").read_text())["scores"]
    probe = json.loads(verb("probe", run, "--num-instances", "120", "--no-tsne", "--json", *code))
    assert probe["task"] == "waves"
    assert "verdict" in json.loads(verb("diagnose", run, "--json", *code))
    verb("report", run, "-o", "report.html", *code)
    page = (tmp_path / "report.html").read_text()
    assert "waves" in page
    assert "f(x) = sin(" in page  # the gallery has asked the network


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder like site-packages, with a package that has entry points."""
    site = tmp_path / "site"
    package = site / "outside_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(EXAMPLES / "own_task.py", package / "task.py")
    shutil.copy(EXAMPLES / "own_model.py", package / "model.py")
    about = site / "outside_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[recombine.tasks]\nwaves = outside_package.task:Waves\n\n"
        "[recombine.models]\naveraging = outside_package.model:AveragingConfig\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


def test_an_installed_package(installed, verb, tmp_path):
    train = ["train", "waves", "--model", "averaging", *SIZES, "--evaluation-instances", "60", "-q"]
    run = verb(*train).strip()
    origins = json.loads((tmp_path / run / "config.json").read_text())["origins"]
    assert origins == {"task": "outside_package.task:Waves", "model": "outside_package.model:AveragingConfig"}
    refused = verb("evaluate", run, fails=True)  # installed, but not named
    assert "--code outside_package.task:Waves" in refused
    by_name = ["--code", "waves", "--code", "averaging"]
    by_module = [part for origin in origins.values() for part in ("--code", origin)]
    evaluate = ["evaluate", run, "--num-instances", "60", "--json"]
    scores = [verb(*evaluate, *code) for code in (by_name, by_module)]
    assert scores[0] == scores[1]


def test_a_file_alone_never_makes_code_run(tmp_path):
    """A run directory from a stranger names code that would leave a mark; it is shown to the user, not run."""
    mark = tmp_path / "mark"
    (tmp_path / "code.py").write_text(f"open({str(mark)!r}, 'w')\nclass Waves: pass\n")
    origins = {"task": f"{tmp_path / 'code.py'}:Waves", "model": f"{tmp_path / 'code.py'}:Waves"}
    contents = {"origins": origins, **small_run().as_dict()}
    run = RunDirectory.create(tmp_path, "stranger", contents)
    with pytest.raises(InputError, match="task 'waves' is not part of this package"):
        load_run(run.path)
    assert not mark.exists()
    with pytest.raises(InputError, match="Waves is not a model"):
        load_run(run.path, code=[origins["task"]])
    assert mark.exists()


WAVES: dict[str, Any] = {"num_waves": 4, "num_examples": 4}


def small_run() -> RunConfig:
    run = default_run(find_task(TASK), "tiny", find_model(MODEL))
    return RunConfig(
        task=type(run.task)(**WAVES),
        model=run.model,
        training=recombine.TrainingConfig(steps=20, batch_size=8),
    )


def test_objects_resume_and_workers(tmp_path):
    """Classes as objects; a stopped run resumes; worker processes load the classes by themselves."""
    config = small_run()

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run(config, out=tmp_path / "here", evaluation_instances=4_000, watch=interrupt)
    here = train_run(config, out=tmp_path / "here", evaluation_instances=4_000)
    worker = LocalEngine(jobs=1, threads=torch.get_num_threads())
    (outcome,) = train_all([config], worker, out=tmp_path / "there")
    there = RunDirectory.open(outcome.path)
    assert here.path.name == there.path.name
    assert here.read_json("result.json")["scores"] == there.read_json("result.json")["scores"]
    _, loaded, _ = load_run(here.path, code=[type(config.task), type(config.model)])
    assert loaded == config
    _, loaded, _ = load_run(here.path, code=[TASK, MODEL])
    assert loaded == config


NET = """
import os
from torch import nn
from own_parts.layers import make_layer

def make_net(task):
    return nn.Sequential(nn.Flatten(), make_layer(task, float(os.environ.get("OWN_SCALE", "1"))))
"""
LAYER = (
    "from . import sizes\nfrom torch import nn\ndef make_layer(task, scale):\n    return nn.Linear(sizes.NUMBER, 1)\n"
)


def test_what_a_file_imports_and_the_variables_it_reads_are_part_of_the_run(tmp_path, monkeypatch):
    """Each change makes another run, and none does not; the file alone has the hash that it always had."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_parts").mkdir()
    contents = {
        "net.py": NET,
        "own_parts/__init__.py": "",
        "own_parts/layers.py": LAYER,
        "own_parts/sizes.py": "NUMBER = 20\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)

    def find_name() -> str:
        return default_run("fuzzy-logic", "tiny", find_model(f"{tmp_path / 'net.py'}:make_net")).directory_name

    names = [find_name(), find_name()]
    for part in ("own_parts/sizes.py", "own_parts/layers.py", "own_parts/__init__.py"):
        (tmp_path / part).write_text(f"{contents[part]}# edited\n")
        names.append(find_name())
    for value in ("2", "3"):
        monkeypatch.setenv("OWN_SCALE", value)
        names.append(find_name())
    monkeypatch.setenv("OTHER_SCALE", "3")
    names.append(find_name())
    assert [names.index(each) for each in names] == [0, 0, 2, 3, 4, 5, 6, 6]
    (tmp_path / "alone.py").write_text(alone := "from torch import nn\ndef make(task):\n    return nn.Linear(1, 1)\n")
    model = find_model(f"{tmp_path / 'alone.py'}:make")
    assert version_of(model) == f"1-{hashlib.sha256(alone.encode()).hexdigest()[:12]}"


def test_an_edited_file_makes_another_run_and_is_mentioned(tmp_path, caplog):
    file = tmp_path / "task.py"
    shutil.copy(EXAMPLES / "own_task.py", file)
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(file.read_text())
    second.write_text(file.read_text() + "\n# edited\n")
    hashes = [default_run(f"{path}:Waves").identity["task"]["version"] for path in (first, second)]
    assert hashes[0] != hashes[1]
    assert hashes[0].startswith("1-")
    run = train_run(
        RunConfig(
            task=find_task(f"{first}:Waves")(**WAVES),
            model=recombine.TransformerConfig(num_layers=1, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2),
            training=recombine.TrainingConfig(steps=10, batch_size=8),
        ),
        out=tmp_path,
        evaluation_instances=20,
    )
    load_run(run.path, code=[f"{second}:Waves"])
    assert "the code of task 'waves' has changed since the run was made" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py:Waves", None, "'missing.py' is not a file: expected Python source"),
        ("task.py:Wave", "class Waves: pass", "task.py has no 'Wave': expected one of Waves"),
        ("task.py:Waves", "class Waves: pass", "Waves is not a task: expected a subclass of recombine.Task"),
        (
            "task.py:Waves",
            "import recombine\nclass Waves(recombine.Task): pass",
            "Waves is not a complete task: expected",
        ),
        ("task.py:Waves", "x = 1\nraise OSError('no')", "cannot be loaded: line 2: OSError: no"),
        ("task.py:Waves", "def", "cannot be loaded: line 1: SyntaxError"),
        ("no.such.module:Waves", None, "'no.such.module:Waves' cannot be imported"),
        (":Waves", None, "expected FILE.py:NAME or package.module:NAME"),
        ("chess", None, "unknown task 'chess': expected one of fuzzy-logic, goal-grid"),
    ],
)
def test_code_that_cannot_be_used(name, content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("task.py").write_text(content)
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        find_task(name)


def test_models_that_cannot_be_used(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\ndef make(): return nn.ReLU()\ndef number(task): return 3\nx = 1\nclass mlp(nn.Module): pass\n"
    )
    task = recombine.FuzzyLogic()
    for name, message in {
        "make": "make cannot be called with the task",
        "number": "number returned int: expected a torch.nn.Module",
        "x": "1 is not a model: expected a subclass of recombine.ModelConfig",
        "mlp": "mlp', which this package uses: expected another name",
    }.items():
        with pytest.raises(InputError, match=message):
            find_model(f"{file}:{name}")().build(task)


def test_settings_need_defaults_on_the_command_line(verb, tmp_path):
    model = tmp_path / "model.py"
    model.write_text(Path(EXAMPLES / "own_model.py").read_text().replace("hidden_dim: int = 64", "hidden_dim: int"))
    shown = verb("train", TASK, "--model", f"{model}:AveragingConfig", fails=True)
    assert "AveragingConfig.hidden_dim has no default: expected one for every setting" in shown


def test_a_class_inside_a_function_cannot_be_sent_to_workers(tmp_path):
    task: Any = find_task(TASK)

    class Local(task):  # type: ignore[misc] # a class that is found while the test runs
        pass

    config = small_run()
    local = RunConfig(task=Local(num_waves=4), model=config.model, training=config.training)
    with pytest.raises(InputError, match="cannot be loaded by another process: expected a class at the top of a file"):
        list(train_all([local], LocalEngine(jobs=1, threads=1), out=tmp_path))
