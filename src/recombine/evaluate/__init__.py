"""Scores of any predictor on any task, with intervals and reference scores; paired differences between predictors."""

from recombine.evaluate.bootstrap import NUM_RESAMPLES, CompositionSums, Difference, compare, compare_rows
from recombine.evaluate.scores import (
    EVALUATION_VERSION,
    BaselineScores,
    Evaluation,
    MetricDict,
    Predictor,
    ReferenceScores,
    Score,
    ScoreDict,
    Scores,
    describe_metrics,
    evaluate_predictor,
    evaluation_splits,
    score,
    score_references,
    scores_as_dict,
)

__all__ = [
    "EVALUATION_VERSION",
    "NUM_RESAMPLES",
    "BaselineScores",
    "CompositionSums",
    "Difference",
    "Evaluation",
    "MetricDict",
    "Predictor",
    "ReferenceScores",
    "Score",
    "ScoreDict",
    "Scores",
    "compare",
    "compare_rows",
    "describe_metrics",
    "evaluate_predictor",
    "evaluation_splits",
    "score",
    "score_references",
    "scores_as_dict",
]
