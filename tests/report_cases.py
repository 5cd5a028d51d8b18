"""Run directories with planted results and probes, for the tests of the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recombine.training.directory import RunDirectory

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SHA256 = "9" * 64


def make_score(value: float, width: float = 0.02, chance: float = 0.0, ceiling: float = 1.0) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width, "chance": chance, "ceiling": ceiling}


def make_run(
    root: Path,
    attention: str,
    ood: dict[str, float] | None = None,
    *,
    sha256: str = SHA256,
    task: str = "fuzzy_logic",
    num_rows: int = 5,
    bare: bool = False,
) -> Path:
    """A run directory; unfinished without a score, and with nothing but its configuration if `bare`."""
    config = {
        "task": {"name": task, "seed": 3},
        "model": {"kind": "transformer", "attention": attention},
        "training": {},
    }
    run = RunDirectory.create(root, "run", config)
    if bare:
        return run.path
    counts = {"num_train": 20, "num_ood": 46, "num_unknown": 6, "overlap": 0, "num_components": 1}
    certificate = {**counts, "covered": True, "connected": True, "coverage": {"0": 3, "1": 2}, "sha256": sha256}
    run.write_json("split.json", {"certificate": certificate})
    run.write_json("environment.json", {"torch": "2.13.0", "source_sha256": "a" * 64})
    rows = [
        {
            "step": step,
            "loss": 1 / step,
            "scores": {name: {"r2": 1 - 1 / step, "r2_pooled": 0.5} for name in ("test", "ood")},
        }
        for step in range(1, num_rows + 1)
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if ood is not None:
        scores = {"test": {"r2": make_score(0.95), "r2_pooled": make_score(0.9)}, "ood": {"r2": ood, "r2_pooled": ood}}
        facts = {
            "task": task,
            "num_parameters": 151_265,
            "seed": 3,
            "steps": 5,
            "seconds": 61.2,
            "steps_per_second": 8.25,
        }
        result = {**facts, "split_sha256": sha256, "scores": scores}
        (run.path / "result.json").write_text(json.dumps(result))  # also NaN, which older versions wrote
    return run.path


def words(page: str, start: str, end: str) -> str:
    """The text between two marks, as a reader sees it."""
    inner = page[page.index(start) : page.index(end, page.index(start))]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", inner[len(start) :])).strip()


def maps_of(page: str) -> dict[str, Any]:
    """The maps of latent codes that a page holds, by run."""
    found = re.search(r'<script type="application/json" id="maps">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


MODULES = ["alpha", "beta & <b>", "$gamma_"]
SITES = [f"{kind}.{layer}" for kind in ("codes", "residual", "hidden") for layer in (0, 1)]


def make_decoder(ood: float) -> dict[str, Any]:
    def scores(value: float) -> dict[str, Any]:
        plain = {"f1": value, "accuracy": value, "exact": value, "r2": value - 1}
        return plain | {"majority": {"f1": 0.1}, "control": {"f1": 0.15}, "selectivity": {}, "untrained": {"f1": 0.2}}

    fit = {"num_features": 4, "strength": {"logistic": 0.1}, "modules": {}, "cross_validated": {"f1": 0.9}}
    return fit | {"id": scores(0.95), "ood": scores(ood)}


def make_probe(ood: float = 0.75) -> dict[str, Any]:
    def change(value: float) -> dict[str, float]:
        return {"change": value, "low": value - 0.1, "high": value + 0.1}

    cosine = [[1.0, -0.5, 0.25], [-0.5, 1.0, 0.0], [0.25, 0.0, 1.0]]
    arm = {"layers": [0, 1], "keys": "all", "own": 0.2, "other": 0.7, "neither": 0.1, "same_rule": 0.9}
    arm["interval"] = [0.6, 0.8]
    base = {"own": 0.8, "other": 0.1, "neither": 0.1, "interval": [0.0, 0.2]}
    by_rule = [[None, 0.75, None], [0.5, None, None], [None, 0.25, None]]
    near = {"purity": 0.625, "chance": 0.333, "silhouette": 0.5}
    return {
        "version": 2,
        "num_instances": 60,
        "num_compositions": {"fit": 1, "id": 1, "ood": 1},
        "seconds": {"total": 1.0},
        "tsne_share": 0.5,
        "reading": {"instances": "puzzles", "codes": "c", "labels": "the rule", "pictured": "puzzles"},
        "modules": MODULES,
        "sites": [{"name": site, "kind": site.split(".")[0], "layer": int(site[-1])} for site in SITES],
        "decoders": {site: make_decoder(ood) for site in SITES},
        "best_site": "hidden.1",
        "structure": {site: {"target": near, "module": near} for site in SITES[:2]},
        "similarity": {site: {"modules": MODULES, "cosine": cosine, "centred": cosine} for site in SITES[:2]},
        "tsne": {"sites": SITES[:2], "num_rows": 60, "perplexity": 30},
        "ablations": {
            "metric": "r2",
            "num_instances": 60,
            "base": {"test": 0.9, "ood": 0.8},
            "layers": [
                {"layer": 0, "kind": kind, "test": change(-0.2), "ood": change(-0.4)} for kind in ("zero", "mean")
            ],
            "heads": [
                {"layer": layer, "head": head, "kind": kind, "test": change(-0.1 * head), "ood": change(-0.3 * head)}
                for layer in (0, 1)
                for head in (0, 1)
                for kind in ("zero", "mean")
            ],
        },
        "swap": {
            "kind": "rules",
            "num_instances": 60,
            "rules": MODULES,
            "splits": {
                name: {"num_rows": 60, "base": base, "base_accuracy": 0.8, "arms": [arm], "by_rule": by_rule}
                for name in ("test", "ood")
            },
        },
        "skipped": {},
    }


def make_arrays(num_rows: int = 60) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = np.arange(num_rows)
    return {
        "sample.labels": np.eye(3, dtype=np.float32)[rows % 3],
        "sample.split": np.where(rows % 2, "ood", "id"),
        "sample.composition": rows % 2,
        "sample.target": rows % 8,
        "sample.modules": np.array(MODULES),
        "sample.compositions": np.array(["alpha + beta", HOSTILE]),
        **{f"tsne.{site}": generator.normal(size=(num_rows, 2)) for site in SITES[:2]},
    }


def make_diagnosis(verdict: str = "inferred but unused") -> dict[str, Any]:
    score = {**make_score(0.5), "agnostic": None, "placed": 0.5}
    split = {"title": "R²", "higher_is_better": True, "covered": True, "connected": True}
    split |= {"splits": {}, "uncovered_modules": []}
    read = {"site": "hidden.1", "metric": "f1", "trained": 0.95, "held_out": 0.75, "baseline": 0.2, "informed": 0.7}
    return {
        "verdict": verdict,
        "sentence": "It infers modules but does not use them.",
        "evidence": {"metric": "r2", "trained": score, "held_out": score, "decodability": read, **split},
        "advice": "let the modules drive the computation",
        "alternatives": ["solved"],
    }


def make_probed(root: Path, name: str, ood: float = 0.75, num_rows: int = 60) -> Path:
    run = make_run(root, name, make_score(0.5))
    (run / "probe.json").write_text(json.dumps(make_probe(ood)))
    np.savez(run / "probe.npz", **make_arrays(num_rows))
    (run / "diagnosis.json").write_text(json.dumps(make_diagnosis()))
    return run


def section_of(page: str, name: str) -> str:
    return words(page, f'<section id="{name}"', "</section>")
