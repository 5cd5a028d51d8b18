"""Why does it not generalise? A verdict from numbers alone: scores, certificate, and what a decoder reads.

A score is placed between chance (0) and its ceiling (1), also where less is better. The first of these that holds is the
verdict:

- uncovered: some module of the held-out compositions was never trained, or, where they fail, training leaves modules in
  groups that never meet: the certificate says so, and the network cannot be blamed;
- not learned: the score on trained compositions is placed below `LEARNED`;
- ambiguous: held-out compositions reach `AT_CEILING`, and that ceiling itself lies `AMBIGUOUS` or more away from a perfect
  score (1, or where less is better 0, measured in units of chance): the inputs do not determine the rest;
- solved: held-out compositions reach `RECOMBINED` of what trained ones reach;
- inferred but unused: they do not, though a decoder fitted on trained compositions reads their modules from the network:
  `DECODABLE` or more of the way from the best uninformed decoder (majority, shuffled control, untrained network) to a
  perfect one (the finding of "When can transformers compositionally generalize in-context?");
- not inferred: they do not, and their modules cannot be read. This is the weakest of the six: a linear decoder of the last
  token can miss what is there. Fuzzy logic is an example, where networks that recombine are hardly easier to read.

If an interval reaches across a threshold, the verdicts at its ends are given as alternatives. Where the ceiling is no
better than chance there is nothing to learn: a score as good as the ceiling is placed at 1, a worse one at 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recombine.diagnose.record import (
    AMBIGUOUS,
    AT_CEILING,
    DECODABLE,
    LEARNED,
    RECOMBINED,
    Decodability,
    Diagnosis,
    Evidence,
    PlacedScore,
    Verdict,
)
from recombine.errors import InputError, check_choice
from recombine.probe.runs import read_probe
from recombine.store import Json, RunDirectory

DECODER_TITLES = {"f1": "F1", "r2": "R²"}

ADVICE: dict[str, str] = {
    "uncovered": "hold out fewer compositions, or check the split (recombine check) before asking about the network",
    "not learned": "train longer, try another learning rate, or a larger network; then ask again",
    "ambiguous": "nothing in the network is to blame; for harder evidence, make instances with one answer only",
    "solved": "hold out more compositions or give less data, until it breaks",
    "inferred but unused": "let the inferred modules drive the computation: HYLA attention, or a hypernetwork bottleneck",
    "not inferred": "show more compositions or more examples, so that modules must be inferred; or try more heads",
}


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """The range of one score: chance, ceiling, and which way is better."""

    chance: float
    ceiling: float
    higher_is_better: bool

    def place(self, value: float) -> float:
        """Where a value lies between chance (0) and ceiling (1)."""
        sign = 1 if self.higher_is_better else -1
        room = sign * (self.ceiling - self.chance)
        if room > 1e-9:
            return sign * (value - self.chance) / room
        return float(sign * (value - self.ceiling) >= -1e-9)

    @property
    def ambiguity(self) -> float:
        """How far the ceiling lies from a perfect score."""
        if self.higher_is_better:
            return 1 - self.ceiling
        return self.ceiling / self.chance if self.chance > 0 else 0.0


def diagnose(
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
    *,
    metric: str | None = None,
    title: str | None = None,
    higher_is_better: bool = True,
) -> Diagnosis:
    """The verdict on `scores` (split -> metric -> value, low, high, chance, ceiling), by default on the headline metric."""
    for split in ("test", "ood"):
        if not scores.get(split):
            raise InputError(f"there is no score on {split!r}: expected scores on test and ood")
    metric = next(iter(scores["test"])) if metric is None else metric
    for split in ("test", "ood"):
        check_choice(f"metric on {split}", metric, scores[split])
    for key in ("covered", "connected"):
        if not isinstance(certificate.get(key), bool):
            raise InputError(f"the certificate says {key} is {certificate.get(key)!r}: expected true or false")
    trained, scale = _place(scores["test"][metric], "test", higher_is_better)
    held_out, held_out_scale = _place(scores["ood"][metric], "ood", higher_is_better)

    def decide(trained_value: float, held_out_value: float) -> Verdict | None:
        placed = scale.place(trained_value), held_out_scale.place(held_out_value)
        return _decide(*placed, held_out_scale.ambiguity, certificate, decodability)

    verdict = decide(trained["value"], held_out["value"])
    if verdict is None:
        raise InputError("held-out compositions fail, but nothing was decoded: expected a probe of the network")
    others = {decide(a, b) for a in (trained["low"], trained["high"]) for b in (held_out["low"], held_out["high"])}
    evidence: Evidence = {
        "metric": metric,
        "title": metric if title is None else title,
        "higher_is_better": higher_is_better,
        "trained": trained,
        "held_out": held_out,
        "covered": certificate["covered"],
        "connected": certificate["connected"],
        "uncovered_modules": [module for module, count in certificate.get("coverage", {}).items() if count == 0],
        "decodability": None if decodability is None else decodability.as_dict(),
    }
    return Diagnosis(
        verdict=verdict,
        sentence=_explain(verdict, evidence),
        evidence=evidence,
        advice=ADVICE[verdict],
        alternatives=tuple(sorted(other for other in others if other is not None and other != verdict)),
    )


def _decide(
    trained: float,
    held_out: float,
    ambiguity: float,
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
) -> Verdict | None:
    """The first verdict that holds, from the placed scores; None if it needs a decoder and there is none."""
    if not certificate["covered"]:
        return "uncovered"
    if trained < LEARNED:
        return "not learned"
    if held_out >= AT_CEILING and ambiguity >= AMBIGUOUS:
        return "ambiguous"
    if held_out >= RECOMBINED * trained:
        return "solved"
    if not certificate["connected"]:
        return "uncovered"
    if decodability is None or not math.isfinite(decodability.informed):
        return None
    return "inferred but unused" if decodability.informed >= DECODABLE else "not inferred"


def _place(score: Mapping[str, float | None], split: str, higher_is_better: bool) -> tuple[PlacedScore, _Scale]:
    """A score with its place. Its value, chance and ceiling must be known; without an interval, it is a point."""
    known = {key: _read_number(score, key) for key in ("value", "low", "high", "chance", "ceiling", "agnostic")}
    value, chance, ceiling = known["value"], known["chance"], known["ceiling"]
    if value is None or chance is None or ceiling is None:
        bad = ", ".join(f"{key} is {score.get(key)}" for key in ("value", "chance", "ceiling") if known[key] is None)
        raise InputError(f"the score on {split!r} cannot be placed because its {bad}: expected finite numbers")
    scale = _Scale(chance=chance, ceiling=ceiling, higher_is_better=higher_is_better)
    low, high = known["low"], known["high"]
    placed: PlacedScore = {
        "value": value,
        "low": value if low is None else low,
        "high": value if high is None else high,
        "chance": chance,
        "ceiling": ceiling,
        "agnostic": known["agnostic"],
        "placed": scale.place(value),
    }
    return placed, scale


def _read_number(score: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None if it is missing, NaN or infinite."""
    number = score.get(key)
    return float(number) if isinstance(number, (int, float)) and math.isfinite(number) else None


def _explain(verdict: Verdict, evidence: Evidence) -> str:
    trained, held_out = evidence["trained"], evidence["held_out"]
    both = f"{held_out['value']:.2f} on held-out compositions against {trained['value']:.2f} on trained ones"
    if verdict == "uncovered":
        named = ", ".join(map(str, evidence["uncovered_modules"]))
        never = f"module {named} was never trained" if named else "training leaves groups of modules that never meet"
        return f"The split cannot show recombination: {never}."
    if verdict == "not learned":
        return (
            f"Trained compositions are at {trained['value']:.2f} of a possible {trained['ceiling']:.2f}: the task itself is "
            f"not learned yet."
        )
    if verdict == "ambiguous":
        return f"It is at its ceiling, {held_out['value']:.2f} of {held_out['ceiling']:.2f}: the rest cannot be known."
    if verdict == "solved":
        return f"It recombines: {both}."
    read = evidence["decodability"]
    assert read is not None
    decoded = (
        f"a linear decoder of {read['site']} has {DECODER_TITLES[read['metric']]} {read['held_out']:.2f} there "
        f"({read['trained']:.2f} on trained ones, {read['baseline']:.2f} without information)"
    )
    if verdict == "inferred but unused":
        return f"It infers modules but does not use them: {both}, yet {decoded}."
    return (
        f"Nothing shows that it infers the modules of new compositions: {both}, and {decoded}. What a linear decoder cannot "
        f"read may still be there."
    )


def read_decodability(probe: Json) -> Decodability | None:
    """The decodability of the best site in `probe.json`, or None if nothing was decoded on held-out compositions."""
    site = probe.get("best_site")
    decoded = probe.get("decoders", {}).get(site, {})
    if site is None or "ood" not in decoded or "id" not in decoded:
        return None
    metric = "f1" if "f1" in decoded["ood"] else "r2"
    trained, held_out = (_read_number(decoded[part], metric) for part in ("id", "ood"))
    if trained is None or held_out is None:
        return None
    uninformed = [_read_number(decoded["ood"].get(name, {}), metric) for name in ("majority", "control", "untrained")]
    baseline = max(0.0, *(value for value in uninformed if value is not None))
    return Decodability(site=site, metric=metric, trained=trained, held_out=held_out, baseline=baseline)


def diagnose_run(path: Path | str) -> Diagnosis:
    """Diagnose a finished run from its own files (`result.json`, `split.json`, `probe.json`) and write `diagnosis.json`."""
    run = RunDirectory.open(path)
    if not run.finished:
        raise InputError(f"{run.path} has no result.json: expected a finished run")
    result, split = run.read_json("result.json"), run.read_json("split.json")
    probe = dict(read_probe(run) or {})  # none if the run was trained further since
    scores = result["scores"]
    metric = next(iter(scores.get("test", {})), "")
    info = result.get("metrics", {}).get(metric, {})
    diagnosis = diagnose(
        scores,
        split.get("certificate", {}),
        read_decodability(probe),
        title=info.get("title"),
        higher_is_better=info.get("higher_is_better", True),
    )
    run.write_json("diagnosis.json", dict(diagnosis.as_dict()))
    return diagnosis
