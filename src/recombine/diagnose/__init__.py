"""Why a network does not generalise: a verdict with its evidence."""

from recombine.diagnose.from_scores import ScoreVerdict, judge_scores
from recombine.diagnose.record import (
    AMBIGUOUS,
    AT_CEILING,
    DECODABLE,
    LEARNED,
    RECOMBINED,
    Decodability,
    Diagnosis,
    DiagnosisDict,
    Evidence,
    PlacedScore,
    Verdict,
)
from recombine.diagnose.verdict import (
    ADVICE,
    DECODER_TITLES,
    diagnose,
    diagnose_run,
    name_splits,
    read_decodability,
)

__all__ = [
    "ADVICE",
    "AMBIGUOUS",
    "AT_CEILING",
    "DECODABLE",
    "DECODER_TITLES",
    "LEARNED",
    "RECOMBINED",
    "Decodability",
    "Diagnosis",
    "DiagnosisDict",
    "Evidence",
    "PlacedScore",
    "ScoreVerdict",
    "Verdict",
    "diagnose",
    "diagnose_run",
    "judge_scores",
    "name_splits",
    "read_decodability",
]
