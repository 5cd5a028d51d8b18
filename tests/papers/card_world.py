"""A small experiment with results that are made up, for tests of the card of claims."""

from dataclasses import replace
from typing import Any, ClassVar

from recombine.sweeps import Record
from recombine.training.config import default_run
from recombine_papers.claims import Lead
from recombine_papers.experiment import PaperExperiment
from recombine_papers.stored import write_results
from stored_runs import stored_line

WIDE, NARROW = {"width": 512}, {"width": 16}


class Widths(PaperExperiment):
    name = "miniature"
    question = "Do wider networks recombine better?"
    metric = "r2_pooled"
    default_scale = "tiny"
    claims: ClassVar[tuple[Any, ...]] = (
        Lead(text="wide beats narrow", source="us", better=WIDE, worse=NARROW, by=0.1, published=0.3),
    )

    def records(self, scale):
        for seed in (0, 1):
            for width in (16, 512):
                run: Any = default_run("hyperteacher", scale)
                config = replace(run, model=replace(run.model, hidden_dim=width))
                yield Record(settings={"width": width}, config=config).with_seed(seed)


def build_world(wide=0.9, narrow=0.5, measured=None):
    scores = {512: wide, 16: narrow}
    records = Widths().records("tiny")
    return [
        (record, {"test": 0.95, "ood": scores[record.settings["width"]]}, (measured or (lambda _: {}))(record))
        for record in records
    ]


def write_world(folder, **world):
    write_results(folder, Widths(), "tiny", [stored_line(*parts) for parts in build_world(**world)])
