"""Runs whose directory depends on prepared files: sweeps and the card of claims find them as they find any other."""

from dataclasses import replace
from pathlib import Path

import pytest

from recombine.models.language_model import LanguageModelConfig
from recombine.sweeps import Record
from recombine.sweeps.local import LocalEngine
from recombine.sweeps.plan import make_plan
from recombine.sweeps.run import find_work, run_sweep
from recombine.tasks.language.task import Language
from recombine.training.config import RunConfig, default_run
from recombine.training.run import train_run
from recombine_papers.base import Experiment
from recombine_papers.stored import collect, locate, read_results, write_results

FOLDER = Path(__file__).parents[1] / "text"


def small_run() -> RunConfig:
    run = default_run("language", "tiny")
    assert isinstance(run.task, Language)
    task = replace(run.task, text=(str(FOLDER),), context_length=64, num_pairs=4, held_out_documents=0.3)
    assert isinstance(run.model, LanguageModelConfig)
    model = replace(run.model, num_layers=1, embedding_dim=16, kqv_dim=16, mlp_dim=16, num_heads=2)
    return replace(run, task=task, model=model, training=replace(run.training, steps=2, batch_size=4))


class Readers(Experiment):
    name = "readers"
    question = "Does a network read?"
    metric = "bits_per_byte"
    split = "text"

    def records(self, scale):
        yield Record(settings={"attention": "softmax"}, config=small_run())


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("runs")
    train_run(small_run(), out=folder)
    return folder


def test_a_finished_run_is_not_trained_again(out):
    plan = make_plan([small_run()], "here")
    work = find_work(plan.records, out)
    assert (len(work.todo), len(work.finished)) == (0, 1)
    status = run_sweep(plan, LocalEngine(jobs=1, threads=1), out=out)
    assert [run.state for run in status.runs] == ["finished"]


def test_results_are_collected_and_name_the_corpus(out, tmp_path):
    (record,) = Readers().records("tiny")
    assert not (out / record.config.directory_name).exists()  # the directory is named after the corpus too
    (line,) = collect(Readers(), "tiny", out)
    assert line["prepared"] == {"corpus": small_run().prepare().task.corpus}  # type: ignore[attr-defined]
    write_results(tmp_path, Readers(), "tiny", [line])
    assert len(read_results(tmp_path, Readers(), "tiny").runs) == 1


def test_a_run_with_other_settings_is_not_taken_for_it(out):
    (record,) = Readers().records("tiny")
    assert locate(record, out).exists()
    other = replace(record, config=replace(record.config, training=replace(record.config.training, steps=3)))
    assert not locate(other, out).exists()
