"""The parts of a diagnosis, as objects and in `diagnosis.json`, and the thresholds of its verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from recombine.evaluate import ScoreDict

LEARNED = 0.8  # of the way from chance to ceiling, on trained compositions
AT_CEILING = 0.95  # of the way from chance to ceiling
AMBIGUOUS = 0.05  # distance of the ceiling from a perfect score
RECOMBINED = 0.9  # held-out compositions relative to trained ones
DECODABLE = 0.5  # of the way from an uninformed decoder to a perfect one
READABLE = 0.9  # score of a decoder that reads the modules, even if the input alone would let it

Verdict = Literal["uncovered", "not learned", "ambiguous", "solved", "inferred but unused", "not inferred"]


class PlacedScore(ScoreDict):
    """A score in `diagnosis.json`, and its position between chance (0) and ceiling (1)."""

    placed: float


class DecodabilityDict(TypedDict):
    """`Decodability` in `diagnosis.json`."""

    site: str
    metric: str
    trained: float
    held_out: float
    baseline: float
    informed: float


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
    decodability: DecodabilityDict | None


class Thresholds(TypedDict):
    """The thresholds of the verdicts, in `diagnosis.json`."""

    learned: float
    at_ceiling: float
    ambiguous: float
    recombined: float
    decodable: float


class DiagnosisDict(TypedDict):
    """`diagnosis.json`."""

    verdict: Verdict
    sentence: str
    evidence: Evidence
    advice: str
    alternatives: list[Verdict]
    thresholds: Thresholds


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

    def as_dict(self) -> DecodabilityDict:
        return {
            "site": self.site,
            "metric": self.metric,
            "trained": self.trained,
            "held_out": self.held_out,
            "baseline": self.baseline,
            "informed": self.informed,
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A verdict, the reason in a sentence, its evidence, and what to try next."""

    verdict: Verdict
    sentence: str
    evidence: Evidence
    advice: str
    alternatives: tuple[Verdict, ...] = ()

    def as_dict(self) -> DiagnosisDict:
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "evidence": self.evidence,
            "advice": self.advice,
            "alternatives": list(self.alternatives),
            "thresholds": {
                "learned": LEARNED,
                "at_ceiling": AT_CEILING,
                "ambiguous": AMBIGUOUS,
                "recombined": RECOMBINED,
                "decodable": DECODABLE,
            },
        }
