"""The verb `reproduce`: what it lists, chooses, compares and reports."""

import json
from dataclasses import replace

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.models.transformer import TransformerConfig
from recombine.sweeps import Record
from recombine.tasks.sraven.task import SRaven
from recombine.training.config import RunConfig, TrainingConfig
from recombine_papers import EXPERIMENTS, verb
from recombine_papers.hypernetwork.published import SRAVEN


def test_reproduce_lists_experiments_with_their_costs(capsys):
    assert run_verb(["reproduce", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"fuzzy-logic", "sraven", "table-a1"} <= set(listed)
    for name, experiment in EXPERIMENTS.items():
        has_runs = next(iter(experiment.records("tiny")), None) is not None
        assert set(listed[name]["core_hours"]) == ({"tiny", "small", "paper"} if has_runs else set()), name
        assert not has_runs or experiment.core_hours[0] > 0, name
    assert run_verb(["reproduce", "list"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "fuzzy-logic" in line)
    assert row.split()[-3:] == ["0.078", "0.42", "2.1"]


def test_reproduce_compares_and_reports(tmp_path, capsys, monkeypatch):
    """A real experiment, as small as can be: two attentions, a table with paired differences, a report."""

    def records(scale):
        model = TransformerConfig(embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4, num_layers=1)
        run = RunConfig(
            task=SRaven(num_features=2),
            model=model,
            training=TrainingConfig(steps=20, batch_size=8),
        )
        for name in ("softmax", "hyla"):
            config = replace(run, model=replace(model, attention=name))
            yield Record(settings={"attention": name}, config=config, published=SRAVEN[name])

    monkeypatch.setattr(EXPERIMENTS["sraven"], "records", records)
    monkeypatch.setattr(SRaven, "evaluation_instances", 300)
    monkeypatch.setattr(verb, "NUM_PROBED", 120)
    monkeypatch.setattr(verb, "NUM_PICTURED", 60)
    command = ["reproduce", "sraven", "--scale", "tiny", "--out", str(tmp_path)]
    assert run_verb([*command, "--report", str(tmp_path / "report.html"), "--no-probe"]) == 0
    assert not list(tmp_path.glob("*/probe.json"))
    capsys.readouterr()
    assert run_verb([*command, "--report", str(tmp_path / "report.html")]) == 0
    captured = capsys.readouterr()
    assert "probing attention hyla, seed 0" in captured.err
    printed = captured.out
    for text in ("above softmax", "most frequent", "ceiling", "after 20 steps", "0.566 ± 0.011", "report.html"):
        assert text in printed
    page = (tmp_path / "report.html").read_text()
    for section in ("verdict", "decodability", "codes", "similarity", "ablations", "gallery"):
        assert f'<section id="{section}"' in page
    probes = list(tmp_path.glob("*/probe.json"))
    assert len(probes) == 2
    probes[0].write_text("{")
    times = [path.stat().st_mtime_ns for path in probes]
    assert run_verb([*command, "--report", str(tmp_path / "report.html")]) == 0
    assert json.loads(probes[0].read_text())["decoders"]  # a damaged probe is made again
    assert probes[1].stat().st_mtime_ns == times[1]
    capsys.readouterr()

    def refuse(path):
        raise InputError("no verdict")

    with monkeypatch.context() as patch:
        patch.setattr(verb, "diagnose_run", refuse)
        assert run_verb([*command, "--report", str(tmp_path / "report.html")]) == 0
    assert "attention hyla, seed 0 was not probed: no verdict" in capsys.readouterr().err
    assert run_verb([*command, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [run["settings"]["attention"] for run in value["runs"]] == ["softmax", "hyla"]
    softmax, hyla = value["tables"]["accuracy on held-out compositions (ood) after 20 steps"]
    assert softmax["paper"] == {"value": 0.5656, "error": 0.0105}
    assert softmax["above softmax"] is None
    assert hyla["above softmax"]["low"] <= hyla["above softmax"]["value"] <= hyla["above softmax"]["high"]
