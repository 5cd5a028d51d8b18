"""Verdicts: whether and why a network generalises, from its scores, the certificate of the split and its probe.

A score is normalised between chance (0) and its ceiling (1), also if lower is better. The verdict is the first of these that
holds:

- uncovered: according to the certificate, some module of the held-out compositions was never trained; or held-out
  compositions fail and the training compositions are not connected. The split is the cause, not the network;
- not learned: the normalised score on trained compositions is below `LEARNED`;
- ambiguous: held-out compositions reach `AT_CEILING`, and the ceiling itself is at least `AMBIGUOUS` away from a perfect
  score (1, or 0 if lower is better, measured in units of chance): the inputs do not determine the answer;
- solved: the held-out score is at least `RECOMBINED` of the trained one;
- inferred but unused: it is not, but the modules of held-out compositions can be decoded from the network: a decoder fitted
  on trained compositions is at least `DECODABLE` of the way from the best uninformed decoder (majority, shuffled control,
  untrained network) to a perfect one, or its score is at least `READABLE`, as for tasks whose input states the modules (the
  finding of "When can transformers compositionally generalize in-context?");
- not inferred: it is not, and the modules cannot be decoded. This is the weakest of the six, because a linear decoder of the
  last token can miss information. In fuzzy logic, for example, networks that recombine are hardly easier to decode.

If an interval includes a threshold, the verdicts at its ends are reported as alternatives. If the ceiling is not better than
chance there is nothing to learn: a score as good as the ceiling is normalised to 1, a worse one to 0.

Predictions without a network to probe get the verdict that scores alone allow (`judge_scores`): if held-out compositions fail,
scores cannot tell whether the modules were inferred but unused, or not inferred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from recombine.foundation.errors import InputError, check_choice
from recombine.inside.result import DECODER_TITLES, PROBE, ProbeNumbers
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json
from recombine.training.score import LEARNED, normalise

AT_CEILING = 0.95  # of the way from chance to ceiling
AMBIGUOUS = 0.05  # distance of the ceiling from a perfect score
RECOMBINED = 0.9  # held-out compositions relative to trained ones
DECODABLE = 0.5  # of the way from an uninformed decoder to a perfect one
READABLE = 0.9  # score of a decoder that reads the modules, even if the input alone would let it
THRESHOLDS = {
    "learned": LEARNED,
    "at_ceiling": AT_CEILING,
    "ambiguous": AMBIGUOUS,
    "recombined": RECOMBINED,
    "decodable": DECODABLE,
}

Verdict = Literal["uncovered", "not learned", "ambiguous", "solved", "inferred but unused", "not inferred"]
ADVICE: dict[Verdict, str] = {
    "uncovered": "hold out fewer compositions, or check the split (recombine check) before diagnosing the network",
    "not learned": "train longer, or try another learning rate or a larger network; then diagnose again",
    "ambiguous": "the network is not the cause; for stronger evidence, generate only instances with one answer",
    "solved": "hold out more compositions or reduce the training data, to find where it fails",
    "inferred but unused": "let the inferred modules drive the computation: HYLA attention, or a hypernetwork bottleneck",
    "not inferred": "show more compositions or more examples, so that modules must be inferred; or try more heads",
}
NEEDS_PROBE: tuple[Verdict, ...] = ("inferred but unused", "not inferred")
SPLIT_NAMES = {"test": "seen compositions", "ood": "held-out compositions"}  # unless the task has other titles


class PlacedScore(TypedDict):
    """A score in `diagnosis.json`, and its normalised value between chance (0) and ceiling (1)."""

    value: float
    low: float
    high: float
    chance: float
    ceiling: float
    agnostic: float | None
    placed: float


class Evidence(TypedDict):
    """The numbers behind a verdict, in `diagnosis.json`."""

    metric: str
    title: str
    higher_is_better: bool
    trained: PlacedScore
    held_out: PlacedScore
    splits: dict[str, str]  # titles of the splits of `trained` and `held_out`
    covered: bool
    connected: bool
    uncovered_modules: list[str]
    decodability: Json | None  # `Decodability`


@dataclass(frozen=True, kw_only=True)
class Decodability:
    """How well modules can be decoded from the network, on trained and held-out compositions, and by uninformed decoders."""

    site: str
    metric: str
    trained: float
    held_out: float
    baseline: float  # the best of majority, control and untrained network, on held-out compositions

    @property
    def informed(self) -> float:
        """Position between the baseline (0) and a perfect decoder (1), on held-out compositions."""
        return (self.held_out - self.baseline) / max(1 - self.baseline, 1e-9)

    def as_dict(self) -> Json:
        return {**asdict(self), "informed": self.informed}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A verdict, the reason in a sentence, its evidence, and what to try next."""

    verdict: Verdict
    sentence: str
    evidence: Evidence
    advice: str
    alternatives: tuple[Verdict, ...] = ()

    def as_dict(self) -> Json:
        """The contents of `diagnosis.json`."""
        return {**asdict(self), "alternatives": list(self.alternatives), "thresholds": THRESHOLDS}


class UndecidedError(InputError):
    """Held-out compositions fail, and only a probe of the network could tell why."""

    def __init__(self, comparison: str) -> None:
        super().__init__("held-out compositions fail, but nothing was decoded: expected a probe of the network")
        self.comparison = comparison


def diagnose(
    scores: Mapping[str, Mapping[str, Mapping[str, float | None]]],
    certificate: Mapping[str, Any],
    decodability: Decodability | None,
    *,
    title: str | None = None,
    higher_is_better: bool = True,
    splits: Mapping[str, str] = SPLIT_NAMES,
) -> Diagnosis:
    """The verdict on the first metric of `scores` (split -> metric -> value, low, high, chance, ceiling).

    `splits` has the titles that the task gives to `test` and `ood`.
    """
    for split in ("test", "ood"):
        if not scores.get(split):
            raise InputError(f"there is no score on {split!r}: expected scores on test and ood")
    metric = check_choice("metric on ood", next(iter(scores["test"])), scores["ood"])
    for key in ("covered", "connected"):
        if not isinstance(certificate.get(key), bool):
            raise InputError(f"{key} in the certificate is {certificate.get(key)!r}: expected true or false")
    trained = _place(scores["test"][metric], "test", higher_is_better)
    held_out = _place(scores["ood"][metric], "ood", higher_is_better)
    ambiguity = 1 - held_out["ceiling"]
    if not higher_is_better:
        ambiguity = held_out["ceiling"] / held_out["chance"] if held_out["chance"] > 0 else 0.0

    def decide(trained_value: float, held_out_value: float) -> Verdict | None:
        """The first verdict that holds; None if it needs a decoder and there is none."""
        seen = normalise(trained_value, trained["chance"], trained["ceiling"], higher_is_better)
        new = normalise(held_out_value, held_out["chance"], held_out["ceiling"], higher_is_better)
        if not certificate["covered"]:
            return "uncovered"
        if seen < LEARNED:
            return "not learned"
        if new >= AT_CEILING and ambiguity >= AMBIGUOUS:
            return "ambiguous"
        if new >= RECOMBINED * seen:
            return "solved"
        if not certificate["connected"]:
            return "uncovered"
        if decodability is None or not math.isfinite(decodability.informed):
            return None
        readable = decodability.informed >= DECODABLE or decodability.held_out >= READABLE
        return "inferred but unused" if readable else "not inferred"

    verdict = decide(trained["value"], held_out["value"])
    if verdict is None:
        raise UndecidedError(_compare(trained, held_out, splits))
    others = {decide(a, b) for a in (trained["low"], trained["high"]) for b in (held_out["low"], held_out["high"])}
    evidence: Evidence = {
        "metric": metric,
        "title": metric if title is None else title,
        "higher_is_better": higher_is_better,
        "trained": trained,
        "held_out": held_out,
        "splits": {"trained": splits["test"], "held_out": splits["ood"]},
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


def _place(score: Mapping[str, float | None], split: str, higher_is_better: bool) -> PlacedScore:
    """A score with its normalised value. Value, chance and ceiling are required; without an interval, it is a point."""
    known = {
        key: float(number)
        for key in ("value", "low", "high", "chance", "ceiling", "agnostic")
        if isinstance(number := score.get(key), int | float) and math.isfinite(number)
    }
    missing = [f"{key} is {score.get(key)}" for key in ("value", "chance", "ceiling") if key not in known]
    if missing:
        raise InputError(
            f"the score on {split!r} cannot be placed because its {', '.join(missing)}: expected finite numbers"
        )
    value, chance, ceiling = known["value"], known["chance"], known["ceiling"]
    return {
        "value": value,
        "low": known.get("low", value),
        "high": known.get("high", value),
        "chance": chance,
        "ceiling": ceiling,
        "agnostic": known.get("agnostic"),
        "placed": normalise(value, chance, ceiling, higher_is_better),
    }


def _compare(trained: PlacedScore, held_out: PlacedScore, splits: Mapping[str, str]) -> str:
    seen = "seen ones" if splits == SPLIT_NAMES else splits["test"]
    return f"{_show(held_out['value'])} on {splits['ood']} against {_show(trained['value'])} on {seen}"


def _show(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _explain(verdict: Verdict, evidence: Evidence) -> str:
    trained, held_out = evidence["trained"], evidence["held_out"]
    splits = {"test": evidence["splits"]["trained"], "ood": evidence["splits"]["held_out"]}
    both = _compare(trained, held_out, splits)
    if verdict == "uncovered":
        named = evidence["uncovered_modules"]
        reason = "training has groups of modules that never occur together"
        if named:
            subject, verb = ("module", "was") if len(named) == 1 else ("modules", "were")
            reason = f"{subject} {', '.join(named)} {verb} never trained"
        return f"The split cannot show recombination: {reason}."
    if verdict == "not learned":
        return (
            f"The task itself is not learned yet: {_show(trained['value'])} on {splits['test']}, where "
            f"{_show(trained['ceiling'])} is possible."
        )
    if verdict == "ambiguous":
        return (
            f"It reaches the ceiling of {splits['ood']}, {_show(held_out['value'])} of {_show(held_out['ceiling'])}: the "
            "inputs do not determine the rest."
        )
    if verdict == "solved":
        return f"It {'recombines' if splits == SPLIT_NAMES else 'generalises'}: {both}."
    read = evidence["decodability"]
    assert read is not None
    uninformed = f"{_show(read['baseline'])} for an uninformed decoder"
    if read["baseline"] >= READABLE:
        uninformed += ", because the input states the modules"
    decoded = (
        f"a linear decoder (site {read['site']}) reaches {DECODER_TITLES[read['metric']]} {_show(read['held_out'])} on "
        f"held-out ones ({_show(read['trained'])} on seen ones, {uninformed})"
    )
    if verdict == "inferred but unused":
        return f"It infers modules but does not use them: {both}, yet {decoded}."
    return (
        f"Nothing shows that it infers the modules of new compositions: {both}, and {decoded}. They may still be "
        f"present in a form that a linear decoder cannot read."
    )


def read_decodability(probe: ProbeNumbers) -> Decodability | None:
    """The decodability of the best site of a probe, or None if nothing was decoded on held-out compositions."""
    site = probe.get("best_site")
    decoder = None if site is None else probe.get("decoders", {}).get(site)
    if site is None or decoder is None or "ood" not in decoder or "id" not in decoder:
        return None
    ood = decoder["ood"]
    metric: Literal["f1", "r2"] = "f1" if "f1" in ood else "r2"
    trained, held_out = decoder["id"].get(metric), ood.get(metric)
    if trained is None or held_out is None:
        return None
    uninformed = [scores.get(metric) for scores in (ood["majority"], ood["control"], ood.get("untrained", {}))]
    baseline = max(0.0, *(value for value in uninformed if value is not None))
    return Decodability(site=site, metric=metric, trained=trained, held_out=held_out, baseline=baseline)


def diagnose_run(path: Path | str) -> Diagnosis:
    """Diagnose a finished run from its own files (`result.json`, `split.json`, `probe.json`) and write `diagnosis.json`."""
    run = RunDirectory.open(path)
    if not run.finished:
        raise InputError(f"{run.path} has no result.json: expected a finished run")
    result, split = run.read_json("result.json"), run.read_json("split.json", complete=True)
    try:
        probe = PROBE.load_current(run)
    except InputError:  # for example of an earlier checkpoint: scores may suffice
        probe = None
    scores = result.get("scores")
    if not scores:
        raise InputError(f"{run.path / 'result.json'} is damaged: scores is missing")
    metric = next(iter(scores.get("test", {})), "")
    info = result.get("metrics", {}).get(metric, {})
    diagnosis = diagnose(
        scores,
        split.get("certificate", {}),
        None if probe is None else read_decodability(cast(ProbeNumbers, probe)),
        title=info.get("title"),
        higher_is_better=info.get("higher_is_better", True),
        splits=name_splits(result),
    )
    run.write_json("diagnosis.json", diagnosis.as_dict())
    return diagnosis


def name_splits(result: Json) -> dict[str, str]:
    """What the task of a run calls `test` and `ood`."""
    described = result.get("splits", {})
    return {split: described.get(split, {}).get("title", title) for split, title in SPLIT_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class ScoreVerdict:
    """A verdict from scores: one of the six, or `not recombined`, and the verdicts it could be."""

    verdict: str
    possible: tuple[Verdict, ...]
    sentence: str

    def as_dict(self) -> Json:
        return {"verdict": self.verdict, "possible": list(self.possible), "sentence": self.sentence}


def judge_scores(
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]],
    certificate: Mapping[str, Any],
    **options: Any,
) -> ScoreVerdict:
    """The verdict as far as scores alone allow; `options` are those of `diagnose`."""
    try:
        diagnosis = diagnose(scores, certificate, None, **options)
    except UndecidedError as error:
        sentence = (
            f"It does not recombine: {error.comparison}. Scores alone cannot show whether it infers the modules; "
            "that needs a network to probe."
        )
        return ScoreVerdict(verdict="not recombined", possible=NEEDS_PROBE, sentence=sentence)
    return ScoreVerdict(
        verdict=diagnosis.verdict, possible=(diagnosis.verdict, *diagnosis.alternatives), sentence=diagnosis.sentence
    )
