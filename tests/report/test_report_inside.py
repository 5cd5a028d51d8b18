"""What the report shows of the inside of networks: planted probes are drawn, broken ones become a sentence."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from recombine.report.findings import MAX_MAPPED, RESOLUTION, read_map
from recombine.report.page import build_sections
from recombine.report.runs import read_runs
from report_cases import (
    HOSTILE,
    make_arrays,
    make_diagnosis,
    make_probe,
    make_probed,
    maps_of,
    section_of,
    words,
)

SECTIONS = ("decodability", "codes", "similarity", "ablations")


def test_a_probed_run_shows_what_was_planted(render, tmp_path):
    page = render(make_probed(tmp_path, "hyla"), make_probed(tmp_path, "softmax", ood=0.25))
    header = words(page, "</h1>", "</header>")
    assert "hyla scores highest on held-out compositions, with R² 0.500 (95 % interval 0.480 to 0.520)" in header
    assert "inferred but unused hyla inferred but unused softmax" in header
    verdict = section_of(page, "verdict")
    assert "hyla inferred but unused It infers modules but does not use them." in verdict
    assert re.search("0.750 .*could also be solved.*Let the modules drive the computation", verdict)
    decoded = section_of(page, "decodability")
    assert "hylahidden.10.7500.9500.1000.1500.200" in decoded.replace(" ", "")
    assert "softmaxhidden.10.2500.9500.1000.1500.200" in decoded.replace(" ", "")
    assert "0.625chance 0.333" in section_of(page, "codes")
    changed = section_of(page, "ablations")
    assert re.search("all layers, all keys ?0.200 ?0.700 ?0.600 to 0.800 ?0.100 ?0.900", changed)
    assert re.search("1 ?1 ?−0.300 ?−0.400 to −0.200 ?−0.100", changed)  # layer, head, zero on unseen, with interval


def test_figures_show_what_was_planted(tmp_path):
    runs = read_runs([make_probed(tmp_path, "hyla"), make_probed(tmp_path, "softmax", ood=0.25)])
    figures = {name: draw for section in build_sections(runs) for name, draw in section.figures.items()}

    def values(name, axes, line):
        return list(figures[name]().axes[axes].lines[line].get_ydata())

    assert values("decoders-f1", 0, 0) == [0.75] * 2  # held-out compositions, latent codes
    assert values("decoders-f1", 0, 1) == [0.95] * 2  # seen
    assert values("decoders-f1", 0, 5) == [0.25] * 2  # of the other run
    cells = figures["similarity-1"]().axes[0].collections[0].get_array()
    assert cells.reshape(3, 3)[0].tolist() == [1, -0.5, 0.25]
    heads = figures["ablations-0"]().axes[0].lines  # interval and change of each head, on seen, then on held-out ones
    assert [line.get_ydata()[0] for line in heads[9:16:2]] == pytest.approx([0, -0.3, 0, -0.3])
    held_out = figures["swap-0"]().axes[0]
    assert [
        bar.get_extents().transformed(held_out.transData.inverted()).width for bar in held_out.patches[:2]
    ] == pytest.approx([0.1, 0.7])
    assert [line.get_xdata().tolist() for line in held_out.lines] == [[0.0, 0.2], [0.6, 0.8]]
    cells = figures["by-rule-0"]().axes[0].collections[0].get_array()
    assert cells.reshape(3, 2).filled(-1).tolist() == [[-1, 0.75], [0.5, -1], [-1, 0.25]]


def test_sections_come_with_their_files_only(render, tmp_path):
    run = make_probed(tmp_path, "hyla")
    found = re.findall('<section id="([a-z]+)"', render(run))
    assert found == ["verdict", "scores", "curves", *SECTIONS, "certificate", "origin"]
    for name in ("probe.json", "probe.npz", "diagnosis.json"):
        (run / name).unlink()
    assert re.findall('<section id="([a-z]+)"', render(run)) == ["scores", "curves", "certificate", "origin"]


def test_map_is_thinned_scaled_and_escaped(render, tmp_path):
    run = make_probed(tmp_path, "hyla", num_rows=4 * MAX_MAPPED)
    code_map = read_map(read_runs([run])[0])
    assert code_map is not None
    assert len(code_map.target) == MAX_MAPPED
    places = code_map.sites["codes.0"]
    assert places.min() >= 0
    assert places.max() <= RESOLUTION
    spread = np.ptp(make_arrays(4 * MAX_MAPPED)["tsne.codes.0"][::4], axis=0)
    assert np.ptp(places, axis=0) / spread == pytest.approx(np.full(2, RESOLUTION / spread.max()), rel=0.01)
    page = render(run)
    packed = maps_of(page)["0"]
    assert packed["compositions"] == ["alpha + beta", HOSTILE]
    assert len(re.findall("<script", page)) == 3
    assert "<img" not in page


BROKEN_FILES = {
    "cut short": ('{"version": 1, "sites": [', "decodability", "probe.json cannot be read"),
    "a list": ("[]", "decodability", "probe.json cannot be read"),
    "foreign": ('{"weights": 3}', "decodability", "probe.json has version None: expected 2"),
    "newer": ('{"version": 3}', "decodability", "probe.json has version 3: expected 2"),
}


@pytest.mark.parametrize(("content", "section", "sentence"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_broken_probe_is_told_once_and_spares_the_rest(render, tmp_path, content, section, sentence):
    runs = make_probed(tmp_path, "hyla"), make_probed(tmp_path, "softmax")
    (runs[1] / "probe.json").write_text(content)
    page = render(*runs)
    assert f"softmax: {sentence}" in section_of(page, section)
    assert page.count(sentence) == 1
    assert str(tmp_path) not in page
    assert all(f"[{name}]" in page for name in ("decoders-f1", "similarity-0", "ablations-0"))
    alone = render(runs[1])
    assert sentence in section_of(alone, section)
    assert 'id="scores"' in alone


def test_what_was_left_out_says_why(render, tmp_path):
    run = make_probed(tmp_path, "hyla")
    probe = make_probe()
    del probe["tsne"], probe["ablations"], probe["swap"]
    probe["skipped"] = {"tsne": "not requested", "ablate": "no code_maps", "swap": "no code_maps"}
    (run / "probe.json").write_text(json.dumps(probe))
    page = render(run)
    assert "not measured: not requested." in section_of(page, "codes")
    assert section_of(page, "ablations").count("no code_maps") == 1
    for broken in (b"", b"PK\x03\x04 no archive"):
        (run / "probe.json").write_text(json.dumps(make_probe()))
        (run / "probe.npz").write_bytes(broken)
        assert "probe.npz is missing or cannot be read" in section_of(render(run), "codes")
    (run / "diagnosis.json").write_text('{"verdict": "cursed"}')
    assert "diagnosis.json is damaged: verdict: invalid enum value &#39;cursed&#39;" in section_of(
        render(run), "verdict"
    )


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value is; of a list only the first, for the others are alike."""
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths_in(each, (*path, key))
    elif isinstance(value, list) and value:
        yield from paths_in(value[0], (*path, 0))


def replace(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    changed = copy.deepcopy(value)
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = wrong
    return changed


MORE_WRONG_VALUES: tuple[Any, ...] = (None, [], {}, [["x"]], -1, float("nan"))
WRONG_VALUES = ("nonsense", *(pytest.param(value, marks=pytest.mark.slow) for value in MORE_WRONG_VALUES))


@pytest.mark.parametrize("wrong", WRONG_VALUES, ids=str)
def test_no_wrong_value_anywhere_breaks_the_report(render, tmp_path, wrong):
    """Every reader, figure and template meets every value of the files replaced by a wrong one."""
    run = make_probed(tmp_path, "hyla")
    probe = make_probe()
    for part in ("decoders", "structure", "similarity"):
        probe[part] = {"codes.0": probe[part]["codes.0"]}  # one is enough to go wrong
    for name, planted in (("probe.json", probe), ("diagnosis.json", make_diagnosis())):
        for path in list(paths_in(planted))[1::4]:
            (run / name).write_text(json.dumps(replace(planted, path, wrong)))
            assert 'id="scores"' in render(run), path
        (run / name).write_text(json.dumps(planted))
