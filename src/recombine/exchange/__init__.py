"""Rows that leave the package and predictions that come back: exports, and scores of predictions made anywhere."""

from recombine.exchange.formats import SUFFIXES, write_table
from recombine.exchange.identity import RowId, hash_export
from recombine.exchange.predictions import Predictions, read_predictions
from recombine.exchange.rows import COLUMNS, describe_columns, make_rows
from recombine.exchange.scoring import ScoredPredictions, score_predictions
from recombine.exchange.text import make_prompts, write_text

__all__ = [
    "COLUMNS",
    "SUFFIXES",
    "Predictions",
    "RowId",
    "ScoredPredictions",
    "describe_columns",
    "hash_export",
    "make_prompts",
    "make_rows",
    "read_predictions",
    "score_predictions",
    "write_table",
    "write_text",
]
