"""Why does it not generalise? A verdict from numbers alone: scores, certificate, and what a decoder reads.

A score is placed between chance (0) and its own ceiling (1). In this order, the first that holds:

- uncovered: some module of the held-out compositions was never trained, or, where they fail, training leaves modules in
  groups that never meet: the certificate says so, and the network cannot be blamed;
- not learned: the score on trained compositions lies below `LEARNED`;
- ambiguous: held-out compositions reach `AT_CEILING`, and that ceiling itself lies `AMBIGUOUS` or more below a perfect 1:
  what is left cannot be known from the input;
- solved: held-out compositions reach `RECOMBINED` of what trained ones reach;
- inferred but unused: they do not, though a decoder fitted on trained compositions reads their modules from the network:
  `DECODABLE` or more of the way from the best uninformed decoder (majority, shuffled control, untrained network) to a
  perfect one (the finding of "When can transformers compositionally generalize in-context?");
- not inferred: they do not, and their modules cannot be read. This is the weakest of the six: a linear decoder of the last
  token can miss what is there. Fuzzy logic is an example, where networks that recombine are hardly easier to read.

If a score's interval reaches across a threshold, the verdicts at its ends are told as alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from recombine.errors import InputError, check_choice
from recombine.probe.runs import read_probe
from recombine.store import Json, RunDirectory

LEARNED = 0.8  # of the way from chance to ceiling, on trained compositions
AT_CEILING = 0.95  # of the way from chance to ceiling
AMBIGUOUS = 0.05  # distance of the ceiling from 1
RECOMBINED = 0.9  # held-out compositions relative to trained ones
DECODABLE = 0.5  # of the way from an uninformed decoder to a perfect one

Verdict = Literal["uncovered", "not learned", "ambiguous", "solved", "inferred but unused", "not inferred"]

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
class Decodability:
    """How well modules are read from the network, on trained and on held-out compositions, and by uninformed decoders."""

    site: str
    metric: str
    trained: float
    held_out: float
    baseline: float  # the best of majority, control and untrained network, on held-out compositions

    @property
    def informed(self) -> float:
        """Of the way from the baseline to 1, on held-out compositions."""
        return (self.held_out - self.baseline) / max(1 - self.baseline, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A verdict, why in a sentence, the numbers behind it, and what to try next."""

    verdict: Verdict
    sentence: str
    evidence: dict[str, Any]
    advice: str
    alternatives: tuple[Verdict, ...] = ()

    def as_dict(self) -> Json:
        thresholds = {
            "learned": LEARNED,
            "at_ceiling": AT_CEILING,
            "ambiguous": AMBIGUOUS,
            "recombined": RECOMBINED,
            "decodable": DECODABLE,
        }
        return {**asdict(self), "alternatives": list(self.alternatives), "thresholds": thresholds}


def diagnose(
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
    *,
    metric: str | None = None,
) -> Diagnosis:
    """The verdict on `scores` (split -> metric -> value, low, high, chance, ceiling), by default on the headline metric."""
    for split in ("test", "ood"):
        if not scores.get(split):
            raise InputError(f"there is no score on {split!r}: expected scores on test and ood")
    metric = next(iter(scores["test"])) if metric is None else check_choice("metric", metric, scores["test"])
    trained, held_out = scores["test"][metric], scores["ood"][metric]
    verdict = _decide(_place(trained, "value"), _place(held_out, "value"), held_out, certificate, decodability)
    if verdict is None:
        raise InputError("held-out compositions fail, but nothing was decoded: expected a probe of the network")
    corners = [(_place(trained, a), _place(held_out, b)) for a in ("low", "high") for b in ("low", "high")]
    others = [_decide(*corner, held_out, certificate, decodability) for corner in corners]
    evidence = _gather_evidence(metric, trained, held_out, certificate, decodability)
    return Diagnosis(
        verdict=verdict,
        sentence=_explain(verdict, evidence),
        evidence=evidence,
        advice=ADVICE[verdict],
        alternatives=tuple(sorted({other for other in others if other is not None} - {verdict})),
    )


def _decide(
    trained: float,
    held_out: float,
    score: Mapping[str, float | None],
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
) -> Verdict | None:
    if not certificate["covered"]:
        return "uncovered"
    if trained < LEARNED:
        return "not learned"
    ceiling = score["ceiling"]
    if ceiling is not None and held_out >= AT_CEILING and 1 - ceiling >= AMBIGUOUS:
        return "ambiguous"
    if held_out >= RECOMBINED * trained:
        return "solved"
    if not certificate["connected"]:
        return "uncovered"
    if decodability is None:
        return None
    return "inferred but unused" if decodability.informed >= DECODABLE else "not inferred"


def _place(score: Mapping[str, float | None], key: str) -> float:
    """Where a score lies between chance (0) and ceiling (1); where these meet there is nothing to learn: 1."""
    chance, ceiling, value = score["chance"], score["ceiling"], score[key]
    if chance is None or ceiling is None or value is None:
        raise InputError(f"a score lacks its {key}, chance or ceiling: expected one with references")
    return (value - chance) / (ceiling - chance) if ceiling - chance > 1e-9 else 1.0


def _gather_evidence(
    metric: str,
    trained: Mapping[str, float | None],
    held_out: Mapping[str, float | None],
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
) -> dict[str, Any]:
    uncovered = [module for module, count in certificate.get("coverage", {}).items() if count == 0]
    return {
        "metric": metric,
        "trained": {**trained, "placed": _place(trained, "value")},
        "held_out": {**held_out, "placed": _place(held_out, "value")},
        "covered": bool(certificate["covered"]),
        "connected": bool(certificate["connected"]),
        "uncovered_modules": uncovered,
        "decodability": None if decodability is None else {**asdict(decodability), "informed": decodability.informed},
    }


def _explain(verdict: Verdict, evidence: dict[str, Any]) -> str:
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
    seen = (
        f"a linear decoder of {read['site']} has {DECODER_TITLES[read['metric']]} {read['held_out']:.2f} there "
        f"({read['trained']:.2f} on trained ones, {read['baseline']:.2f} without information)"
    )
    if verdict == "inferred but unused":
        return f"It infers modules but does not use them: {both}, yet {seen}."
    return (
        f"Nothing shows that it infers the modules of new compositions: {both}, and {seen}. What a linear decoder cannot "
        f"read may still be there."
    )


def read_decodability(probe: Json) -> Decodability | None:
    """The decodability of the best site in `probe.json`, or None if nothing was decoded on held-out compositions."""
    site = probe.get("best_site")
    found = probe.get("decoders", {}).get(site, {})
    if site is None or "ood" not in found or "id" not in found:
        return None
    metric = "f1" if "f1" in found["ood"] else "r2"
    uninformed = [found["ood"].get(name, {}).get(metric) for name in ("majority", "control", "untrained")]
    return Decodability(
        site=site,
        metric=metric,
        trained=found["id"][metric],
        held_out=found["ood"][metric],
        baseline=max(0.0, *(value for value in uninformed if value is not None)),
    )


def diagnose_run(path: Path | str) -> Diagnosis:
    """Diagnose a finished run from its own files (`result.json`, `split.json`, `probe.json`), and leave `diagnosis.json`."""
    run = RunDirectory.open(path)
    if not run.finished:
        raise InputError(f"{run.path} has no result.json: expected a finished run")
    result, split = run.read_json("result.json"), run.read_json("split.json")
    probe = dict(read_probe(run) or {})  # none if it was trained further since
    found = diagnose(result["scores"], split["certificate"], read_decodability(probe))
    run.write_json("diagnosis.json", found.as_dict())
    return found
