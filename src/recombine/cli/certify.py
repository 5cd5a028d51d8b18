"""recombine certify TABLE: does the split of a data set that others made test recombination?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.foundation.display import Table
from recombine.foundation.errors import InputError
from recombine.integrations.certify import DataCertificate, certify, make_splits, write_splits


@dataclass(frozen=True, kw_only=True)
class CertifyOptions(Output):
    """Print the certificate of a table's split: coverage, connectivity, overlap, distance, balance and hash."""

    examples = (
        "recombine certify shapes.csv --composition shape colour",
        "recombine certify data/ --composition verb modifier --train training",
        "recombine certify shapes.csv --composition shape colour --make 0.25 -o better.parquet",
    )

    table: Annotated[Path, Argument(metavar="TABLE", positional=True)]
    """A file (.csv, .parquet, .jsonl), a folder of files such as train.csv and test.csv, or a Hugging Face data set on disk."""
    composition: Annotated[tuple[str, ...], Argument(metavar="COLUMN")]
    """Columns whose values make a composition."""
    split: Annotated[str, Argument(metavar="COLUMN")] = "split"
    """Column that says what is trained and what is held out; without it, the names of files or folders."""
    train: Annotated[str | None, Argument(metavar="NAME")] = None
    """Value of that column for training rows (default: train)."""
    compare_rows: bool = True
    """Also search for rows that are in training and held out."""
    make: Annotated[float | None, Argument(metavar="FRACTION")] = None
    """Write a split that holds out this fraction of the compositions, covered and connected, to --out."""
    folds: int = 1
    """With --make: number of splits, which together hold every composition out once."""
    seed: int = 0
    """With --make: random seed of the split."""
    out: Annotated[Path | None, Argument(alias="-o")] = None
    """With --make: file for the rows with their new split, .parquet or .csv."""


def run(argv: list[str]) -> None:
    options = parse(CertifyOptions, argv, prog="certify")
    if (options.make is None) != (options.out is None):
        raise InputError("--make and --out belong together: expected `--make FRACTION -o FILE`")
    certificate = certify(options.table, **options.select("composition", "split", "train", "compare_rows"))
    value = certificate.as_dict()
    shown: list[Table | str] = [tabulate(certificate), certificate.verdict, f"sha256 {certificate.sha256}"]
    if options.make is not None and options.out is not None:
        compositions = {values for counts in certificate.counts.values() for values in counts}
        folds = make_splits(compositions, held_out=options.make, seed=options.seed, num_folds=options.folds)
        write_splits(options.table, certificate.columns, folds, options.out, split=options.split)
        value["made"] = {"file": str(options.out), "num_held_out": [len(fold) for fold in folds]}
        held_out = ", ".join(str(len(fold)) for fold in folds)
        shown.append(
            f"{options.out} holds out {held_out} of {len(compositions)} compositions; training covers and connects all values"
        )
    options.show(value, *shown)


def tabulate(certificate: DataCertificate) -> Table:
    """One fact per row, one column per held-out part."""
    trained = certificate.counts[certificate.train]
    facts: dict[str, list[str | int | float | None]] = {
        "rows": [part.num_rows for part in certificate.held_out],
        "compositions": [part.num_compositions for part in certificate.held_out],
        "… that are trained too": [part.num_trained for part in certificate.held_out],
        "… with a value that is never trained": [part.num_uncovered for part in certificate.held_out],
        "… of values that training never connects": [part.num_unconnected for part in certificate.held_out],
        "… that test recombination": [part.num_valid for part in certificate.held_out],
        "… by values to change to a trained one": [
            ", ".join(f"{level}: {count}" for level, count in part.levels.items()) for part in certificate.held_out
        ],
        "share of their pairs of values that are trained": [part.trained_pairs for part in certificate.held_out],
        "rows that are training rows too": [part.num_shared_rows for part in certificate.held_out],
    }
    note = (
        f"{certificate.train}: {certificate.num_rows:,} rows of {len(trained):,} compositions; the most frequent one has "
        f"{certificate.imbalance:.3g} times the rows of the least frequent one; case and spacing are ignored in comparisons"
    )
    return Table(
        title="certificate of the split",
        columns=("held out", *(part.name for part in certificate.held_out)),
        rows=tuple((fact, *values) for fact, values in facts.items()),
        note=note,
    )
