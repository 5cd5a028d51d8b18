"""The gallery of the report, and sections as files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from recombine.models.transformer import TransformerConfig
from recombine.report.explorer import NUM_ASKED, NUM_SHOWN, make_gallery
from recombine.report.page import render as render_page
from recombine.report.read import read_runs
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.sraven.task import SRaven
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.run import train_run
from report_cases import make_run, make_score, section_of


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch):
    """Render runs without the plotting library, which is as long as everything else is not."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* plotly */")
    return lambda *paths, title="Do they recombine?": render_page(read_runs(paths), title)


@pytest.fixture(scope="module", params=["sraven", "fuzzy_logic"])
def trained(request, tmp_path_factory) -> Path:
    """A real run of a few steps."""
    task = {"sraven": SRaven(num_features=2), "fuzzy_logic": FuzzyLogic(num_examples=8)}[request.param]
    model = TransformerConfig(num_layers=1, embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=2)
    config = RunConfig(task=task, model=model, training=TrainingConfig(steps=2, batch_size=8))
    return train_run(config, out=tmp_path_factory.mktemp("runs"), device="cpu", evaluation_instances=64).path


def test_gallery_judges_as_the_task_does(trained):
    run = read_runs([trained])[0]
    gallery = make_gallery(run)
    assert gallery.num_asked == NUM_ASKED
    assert len(gallery.wrong) == min(NUM_SHOWN, NUM_ASKED - gallery.num_right) > 0
    assert len(gallery.right) == min(NUM_SHOWN, gallery.num_right)
    card = gallery.wrong[0]
    assert len(card.composition) == 2
    assert card.picture.startswith("<svg")
    assert re.search(r"wrong in (shape|size)|error \d", " ".join(card.remarks))


def test_gallery_is_optional_and_breaks_nothing(render, trained, tmp_path):
    run = tmp_path / trained.name
    shutil.copytree(trained, run)
    page = render(run)
    assert "instances are right" in section_of(page, "gallery")
    assert 'id="gallery"' not in render_page(read_runs([run]), "t", gallery=False)
    (run / "checkpoint.safetensors").write_bytes(b"nothing")
    page = render(run)
    assert "checkpoint.safetensors cannot be read" in section_of(page, "gallery")
    assert str(tmp_path) not in page
    assert 'id="origin"' in page


def test_a_new_section_is_one_file(tmp_path, monkeypatch, render):
    """A file in the folder of sections is all it takes, and without it the page is as before."""
    from recombine.report import sections

    run = make_run(tmp_path, "hyla", make_score(0.5))
    before = render(run)
    (tmp_path / "weather.py").write_text(
        "from recombine.report.sections import Section\n"
        "ORDER = 15\n"
        "def build(runs):\n"
        "    template = '<p>{{ section.content.words }} on {{ runs | length }} run</p>'\n"
        "    return Section(name='weather', title='Weather', content={'words': 'Sun & wind'}, template=template)\n"
    )
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(tmp_path)])
    page = render(run)
    assert "<p>Sun &amp; wind on 1 run</p>" in page
    assert page.index('id="weather"') < page.index('id="scores"')
    assert 'id="weather"' not in before
