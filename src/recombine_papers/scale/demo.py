"""The demo: two networks that fit the compositions they were trained on; one of them recombines what it learned.

The task is the smaller hyperteacher, with part of the compositions held out. A plain network and a linear hypernetwork are
trained on the same data. The setting was chosen because it shows the phenomenon within a minute or two on two cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from recombine.foundation import Table, show_setting
from recombine.inside import diagnose_run
from recombine.sweeps import Finished, Group, Record, mean_cell
from recombine.tasks import Scale
from recombine_papers.experiment import SeededExperiment
from recombine_papers.scale.runs import change, hyperteacher

HELD_OUT = 0.6
STEPS = 3_000
SIZES = {"mlp": {"hidden_dim": 256}, "hypernetwork": {"hidden_dim": 64}}
LOST = 0.9  # held-out score relative to the trained one, below which a network is said to fail


class Demo(SeededExperiment):
    """A network that fails on held-out compositions, and one that does not."""

    name = "demo"
    core_hours = (0.02, 0.02, 0.02)
    question = "Two networks fit the compositions they were trained on. Do they recombine what they learned?"
    metric = "r2"
    compared = "model"

    def count_seeds(self, scale: Scale) -> int:
        return 3

    def variants(self, scale: Scale) -> Iterator[Record]:
        """One record per network; the demo has one size."""
        for model, sizes in SIZES.items():
            run = change(hyperteacher("small", model), dict(sizes), held_out=HELD_OUT)
            run = replace(run, training=replace(run.training, steps=STEPS))
            yield Record(settings={"model": model}, config=run)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [*super().tables(finished, device), self.conclude(finished)]

    def conclude(self, finished: Finished) -> Table:
        """The verdict on each network, and what it means in a sentence."""
        rows = []
        for group in finished.groups:
            verdicts = Counter(diagnose_run(run.run.path).verdict for run in group.runs)
            shown = ", ".join(f"{verdict} ({count} of {len(group.runs)})" for verdict, count in verdicts.items())
            rows.append((show_setting(str(group.settings["model"])), shown, self.describe(group)))
        return Table(title="In words", columns=("model", "verdict", "what happened"), rows=tuple(rows))

    def describe(self, group: Group) -> str:
        """What the mean scores say; nothing that they do not bear out."""
        trained = mean_cell(group.scores("test", self.metric))
        held_out = mean_cell(group.scores("ood", self.metric))
        assert trained is not None
        assert held_out is not None
        kept = held_out.value / trained.value
        ending = "so it recombines the modules" if kept >= LOST else "so it fits what it saw and fails on the rest"
        return f"keeps {100 * kept:.0f} % of its R² on compositions it never saw, {ending}"
