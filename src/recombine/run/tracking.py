"""Experiment trackers: they are given the rows of `metrics.jsonl` and the result, and nothing depends on them.

`recombine.integrations.trackers` has adapters for TensorBoard, Weights & Biases and MLflow. A tracker that fails while the
run goes on is left out with a warning.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from recombine.store import MetricsRow, ResultFile, RunDirectory

_log = logging.getLogger(__name__)


class Tracker(ABC):
    """What a tracker must be able to do."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, run: RunDirectory, step: int) -> None:
        """Begin, or go on with, the record of a run; rows after `step` will come again."""

    @abstractmethod
    def add(self, row: MetricsRow) -> None:
        """Take a row of `metrics.jsonl`."""

    @abstractmethod
    def finish(self, result: ResultFile) -> None:
        """Take the result of a finished run."""

    @abstractmethod
    def close(self) -> None:
        """End, whether the run is finished or not."""


class Tracking:
    """The trackers of a run that have not failed."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def add(self, row: MetricsRow) -> None:
        self._each(lambda tracker: tracker.add(row))

    def finish(self, result: ResultFile | None) -> None:
        if result is not None:
            self._each(lambda tracker: tracker.finish(result))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:  # anything that the tracker's package may raise; the run does not need it
                _log.warning("%s failed and is left out: %s", tracker.name, str(error).split("\n")[0])
                self.trackers.remove(tracker)


@contextlib.contextmanager
def track(trackers: Sequence[Tracker], run: RunDirectory, step: int) -> Iterator[Tracking]:
    """Start trackers, and close them at the end."""
    for tracker in trackers:
        tracker.start(run, step)
    tracking = Tracking(trackers)
    try:
        yield tracking
    finally:
        tracking.close()
