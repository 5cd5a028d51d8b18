"""The verdict as far as scores alone allow, for predictions without a network that could be probed.

Scores decide between uncovered, not learned, ambiguous and solved. If held-out compositions fail, they cannot tell whether
the modules were inferred but unused, or not inferred.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from recombine.diagnose.record import Verdict
from recombine.diagnose.verdict import SPLIT_NAMES, UndecidedError, diagnose

NEEDS_PROBE: tuple[Verdict, ...] = ("inferred but unused", "not inferred")


class ScoreVerdictDict(TypedDict):
    """What `recombine score --json` prints as `verdict`."""

    verdict: str
    possible: list[Verdict]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class ScoreVerdict:
    """A verdict from scores: one of the six, or `not recombined`, and the verdicts it could be."""

    verdict: str
    possible: tuple[Verdict, ...]
    sentence: str

    def as_dict(self) -> ScoreVerdictDict:
        return {"verdict": self.verdict, "possible": list(self.possible), "sentence": self.sentence}


def judge_scores(
    scores: Mapping[str, Mapping[str, Mapping[str, Any]]],
    certificate: Mapping[str, Any],
    *,
    title: str | None = None,
    higher_is_better: bool = True,
    splits: Mapping[str, str] = SPLIT_NAMES,
) -> ScoreVerdict:
    """The verdict on the headline metric of `test` and `ood`."""
    try:
        diagnosis = diagnose(scores, certificate, None, title=title, higher_is_better=higher_is_better, splits=splits)
    except UndecidedError as error:
        sentence = (
            f"It does not recombine: {error.comparison}. Scores alone cannot show whether it infers the modules; "
            "that needs a network to probe."
        )
        return ScoreVerdict(verdict="not recombined", possible=NEEDS_PROBE, sentence=sentence)
    return ScoreVerdict(
        verdict=diagnosis.verdict, possible=(diagnosis.verdict, *diagnosis.alternatives), sentence=diagnosis.sentence
    )
