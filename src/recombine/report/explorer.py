"""The map of latent codes: t-SNE coordinates and labels of each point, stored at the resolution of a screen.

The page draws the picture when a reader selects run, site and colour (`explorer.js`), so no point is stored twice.

Instances of held-out compositions that a run gets right and wrong: the first few of each, in the order of the stream.

Predictions are not stored with a run, so the network is rebuilt from its checkpoint and evaluated here on a few dozen
instances. The task defines what is right and how an instance is drawn. If a run cannot be rebuilt, a sentence says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recombine.foundation.errors import InputError
from recombine.inside.result import ProbeNumbers, read_arrays
from recombine.report.figures import Figure, make_figure, plain
from recombine.report.findings import Found, read_part
from recombine.report.read import ReportRun
from recombine.tasks.view import Card
from recombine.training.benchmark import load_run
from recombine.training.schema import Json

MAX_MAPPED = 1_500  # points per map, limited by how fast a browser draws vectors
RESOLUTION = 1_000  # steps of a coordinate; t-SNE has no units


@dataclass(frozen=True, kw_only=True)
class EmbeddingMap:
    """Points of one run: a place at each site, and what they are."""

    sites: dict[str, np.ndarray]  # (points, 2), from 0 to RESOLUTION
    labels: np.ndarray  # (points, modules)
    unseen: np.ndarray
    composition: np.ndarray  # numbers in `compositions`
    target: np.ndarray
    modules: list[str]
    compositions: list[str]
    structure: dict[str, dict[str, dict[str, float | None]]]  # site, colour, purity and chance

    @property
    def binary(self) -> bool:
        return bool(np.isin(self.labels, (0, 1)).all())

    @property
    def single(self) -> bool:
        """Whether each point has exactly one module, so that all modules can be shown as colours."""
        return self.binary and bool((self.labels.sum(axis=1) == 1).all())

    @property
    def purest(self) -> str:
        """The site whose neighbourhoods are purest by module."""
        purity = {site: self.structure[site]["module"]["purity"] or 0.0 for site in self.sites}
        return max(purity, key=lambda site: purity[site])

    @property
    def ordinal(self) -> bool:
        return self.target.dtype.kind in "iu"


def read_map(run: ReportRun) -> EmbeddingMap | None:
    part = read_part(run, "tsne")
    if part is None:
        return None
    return _make_map(read_arrays(run.directory), part["probe"])


def _make_map(arrays: dict[str, np.ndarray], probe: ProbeNumbers) -> EmbeddingMap:
    columns = {name: arrays[f"sample.{name}"] for name in ("labels", "split", "composition", "target")}
    sites = {site: arrays[f"tsne.{site}"] for site in probe["tsne"]["sites"]}
    num_rows = len(columns["split"])
    if not sites or not num_rows:
        raise InputError(f"there are {len(sites)} sites and {num_rows} rows in the map: expected at least one of each")
    for name, values in (columns | sites).items():
        if len(values) != num_rows or (name in sites and values.shape != (num_rows, 2)):
            raise InputError(f"{name} in probe.npz has shape {values.shape}: expected {num_rows} rows")
    if columns["target"].ndim != 1:
        columns["target"] = columns["target"][..., 0].reshape(num_rows)
    kept = np.arange(num_rows)[:: math.ceil(num_rows / MAX_MAPPED)]
    compositions = [str(words) for words in arrays["sample.compositions"]]
    if columns["composition"].min() < 0 or columns["composition"].max() >= len(compositions):
        raise InputError(f"compositions in probe.npz are numbered past {len(compositions)}: expected their words")
    return EmbeddingMap(
        sites={site: _scale(places[kept]) for site, places in sites.items()},
        labels=columns["labels"][kept],
        unseen=columns["split"][kept] == "ood",
        composition=columns["composition"][kept],
        target=columns["target"][kept],
        modules=[str(name) for name in arrays["sample.modules"]],
        compositions=compositions,
        structure={site: _read_structure(probe, site) for site in sites},
    )


def _read_structure(probe: ProbeNumbers, site: str) -> dict[str, dict[str, float | None]]:
    structure: Json = dict(probe.get("structure", {}).get(site, {}))
    names = ("purity", "chance", "untrained")
    return {colour: {name: structure.get(colour, {}).get(name) for name in names} for colour in ("target", "module")}


def _scale(places: np.ndarray) -> np.ndarray:
    """Round to whole numbers, with equal steps in both directions, which preserves distances."""
    low, high = np.nanmin(places, axis=0), np.nanmax(places, axis=0)
    centred = (places - (low + high) / 2) / max(float((high - low).max()), 1e-9)
    return np.rint(np.nan_to_num(centred + 0.5) * RESOLUTION).astype(int)


def explorer_figure(found: Found[EmbeddingMap]) -> Figure:
    """An empty picture, and beside it all that can be put into it."""
    bare = {"showticklabels": False, "showgrid": False, "range": [-25, RESOLUTION + 25], "showline": False}
    figure = make_figure(
        [],
        height=560,
        y=bare | {"scaleanchor": "x"},
        x=bare,
        hovermode="closest",
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
    )
    figure["layout"] |= {"legend": {"orientation": "h", "y": 0, "yanchor": "top", "itemsizing": "constant"}}
    return figure | {"explorer": {str(run.series): _pack(each) for run, each in found}}


def _pack(code_map: EmbeddingMap) -> dict[str, Any]:
    target = code_map.target.astype(float).round(3).tolist()
    return {
        "sites": {site: [places[:, 0].tolist(), places[:, 1].tolist()] for site, places in code_map.sites.items()},
        "labels": [np.flatnonzero(row).tolist() for row in code_map.labels] if code_map.binary else [],
        "unseen": code_map.unseen.astype(int).tolist(),
        "composition": code_map.composition.tolist(),
        "target": [int(value) for value in target] if code_map.ordinal else target,
        "modules": [plain(name) for name in code_map.modules],
        "compositions": [plain(words) for words in code_map.compositions],
        "single": code_map.single,
    }


NUM_ASKED = 64
NUM_SHOWN = 4  # right instances, and as many wrong ones


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The cards of a run, and the number of right answers among all that were evaluated."""

    task: str
    right: list[Card]
    wrong: list[Card]
    num_right: int
    num_asked: int
    meaning: str  # of right


def read_gallery(run: ReportRun) -> Gallery | None:
    """The gallery of a run, or None if there is no checkpoint."""
    if not (run.directory.path / "checkpoint.safetensors").exists():
        return None
    try:
        return make_gallery(run)
    except InputError:
        raise
    except Exception as error:  # an error in a network or a task must not prevent the report
        raise InputError(
            f"its network could not be evaluated ({type(error).__name__}): expected a run of this version"
        ) from None


def make_gallery(run: ReportRun) -> Gallery:
    try:
        _, config, model = load_run(run.directory.path, "cpu", code=run.code)
    except InputError as error:
        raise InputError(str(error).replace(str(run.directory.path), "the run")) from None
    task = config.task
    batch = task.sample("ood", 0, batch_size=NUM_ASKED)
    with torch.no_grad():
        answers, right = task.judge(model(batch.inputs), batch)
    chosen = [torch.nonzero(right == wanted)[:NUM_SHOWN, 0].tolist() for wanted in (True, False)]
    cards = [[task.card(batch, row, answers[row]) for row in rows] for rows in chosen]
    return Gallery(
        task=task.name,
        right=cards[0],
        wrong=cards[1],
        num_right=int(right.sum()),
        num_asked=NUM_ASKED,
        meaning=task.right_means,
    )
