"""The answer at the top of the page: a sentence that claims no more than the intervals support, with its caveats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from markupsafe import Markup, escape

from recombine.foundation.errors import InputError
from recombine.report.findings import Diagnosed
from recombine.report.runs import (
    ReportRun,
    RunGroup,
    compare_groups,
    find_position,
    is_lower_better,
    metric_title,
    show_number,
    split_title,
)
from recombine.training.intervals import Difference, compare
from recombine.training.schema import Score


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the top of the page shows; `verdicts` are (class of the badge, verdict, label, number of seeds)."""

    sentence: Markup
    lead: Markup = field(default_factory=Markup)
    verdicts: list[tuple[str, str, str, str]]
    unjudged: Markup  # labels of finished runs without a verdict
    num_splits: int
    notes: str


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Finished runs by their score on held-out compositions, best first, and what their intervals support."""

    ranked: list[tuple[ReportRun, Score]]
    tied: list[ReportRun]  # the interval meets that of the best
    lead: Difference | None  # of the best over the next, paired, if both were scored on the same instances
    above_chance: bool  # of any run, with the whole interval


def rank_runs(runs: Sequence[ReportRun], metric: str) -> Ranking:
    pairs = [(run, score) for run in runs if run.result and (score := run.score("ood", metric))]
    ranked = [(run, score) for run, score in pairs if math.isfinite(score.value)]
    ranked.sort(key=lambda pair: pair[1].value * (-1 if is_lower_better(pair[1]) else 1), reverse=True)
    best = ranked[0][1] if ranked else None
    return Ranking(
        ranked=ranked,
        lead=_paired_lead(ranked, metric),
        tied=[run for run, score in ranked[1:] if best and not (score.high < best.low or score.low > best.high)],
        above_chance=any(
            all((find_position(score, end) or 0) > 0 for end in (score.low, score.high)) for _, score in ranked
        ),
    )


def _paired_lead(ranked: Sequence[tuple[ReportRun, Score]], metric: str) -> Difference | None:
    """The paired difference between the best run and the next on held-out compositions."""
    results = [run.result for run, _ in ranked[:2]]
    same = ("task", "split_sha256", "evaluation_instances")
    if len(results) < 2 or any(results[0].get(name) != results[1].get(name) for name in same):
        return None
    sums = [result.get("composition_sums", {}).get("ood", {}).get(metric) for result in results]
    try:
        return compare(*sums) if all(sums) else None
    except InputError:  # scored on different instances, for instance with another teacher
        return None


def make_answer(
    runs: Sequence[ReportRun], groups: Sequence[RunGroup], metric: str | None, verdicts: Sequence[Diagnosed]
) -> Answer:
    """The answer about all runs; `metric` is the headline metric, `verdicts` are those of the runs that have one."""
    finished = [run for run in runs if run.result]
    splits = {sha256 for run in runs if (sha256 := run.certificate.get("sha256"))}
    ranking = rank_runs(runs, metric) if metric else Ranking(ranked=[], tied=[], lead=None, above_chance=False)
    held_out = split_title("ood", runs).lower()
    sentence, lead = _explain_absence(runs, finished, ranking, held_out), Markup()
    if not sentence and groups and metric:
        sentence, lead = _describe_groups(runs, groups, metric, held_out)
    elif not sentence and metric:
        sentence = _describe_best(runs, ranking, metric, held_out, same_split=len(splits) < 2)
    judged = [run for run, _ in verdicts]
    unjudged = [] if groups else [run for run in finished if run not in judged]
    return Answer(
        sentence=sentence,
        lead=lead,
        verdicts=_list_verdicts(groups, verdicts),
        unjudged=_join_labels(unjudged),
        num_splits=1 if groups else len(splits),
        notes=_describe_intervals(runs, finished, groups) if ranking.ranked else "",
    )


def _explain_absence(
    runs: Sequence[ReportRun], finished: Sequence[ReportRun], ranking: Ranking, held_out: str
) -> Markup:
    """Why there is no answer; empty if there is one."""
    one = len(runs) == 1
    num_tasks = len({run.result.get("task") for run in finished})
    if not finished and all(run.pretrained for run in runs):
        return Markup(
            "{} on labelled prompts, not trained here: what can be read from the codes of held-out compositions of labels, "
            "and what the codes do."
        ).format("A pretrained model" if one else "Pretrained models")
    if not finished:
        words = ("The run has not", "it has") if one else ("No run has", "they have")
        return Markup("{} finished yet, so there is no answer; below is what {} written so far.").format(*words)
    if not ranking.ranked:
        return Markup("No finished run has a score on {}, so there is no answer.").format(held_out)
    if num_tasks > 1:
        return Markup(
            "These runs belong to {} different tasks, so they are not ranked. Each score is shown between chance and "
            "ceiling of its own task."
        ).format(num_tasks)
    return Markup()


def _describe_groups(
    runs: Sequence[ReportRun], groups: Sequence[RunGroup], metric: str, held_out: str
) -> tuple[Markup, Markup]:
    """The difference between the best two groups in a sentence, and the scores of the best three."""
    title, seen = metric_title(metric, runs), split_title("test", runs).lower()
    parts = []
    for group in groups[:3]:
        ends, word = group.held_out.pair or (group.held_out.low, group.held_out.high), "95 % interval {} to {}"
        interval = ("its two seeds {} and {}" if group.held_out.pair else word).format(*map(show_number, ends))
        parts.append(
            Markup('<b>{}</b> has {} <span class="number">{}</span> on {} ({}) and {} on {}').format(
                group.label,
                title,
                show_number(group.held_out.value),
                held_out,
                interval,
                show_number(group.trained.value),
                seen,
            )
        )
    more = f"; {len(groups) - 3} more are below" if len(groups) > 3 else ""
    scores = Markup("; ").join(parts) + more + "."
    lead = compare_groups(groups, metric)
    if lead is None:
        return scores, Markup()
    ends, word = lead.pair or (lead.low, lead.high), "95 % interval {} to {}"
    sentence = Markup(
        'On {}, the {} of <b>{}</b> is <span class="number">{}</span> {} that of <b>{}</b> (paired by seed: {}){}'
    ).format(
        held_out,
        title,
        groups[0].label,
        show_number(abs(lead.value)),
        "below" if lead.value < 0 else "above",
        groups[1].label,
        ("{} and {}" if lead.pair else word).format(*map(show_signed, ends)),
        "." if lead.low > 0 or lead.high < 0 else ": not a clear difference.",
    )
    return sentence, scores


def _describe_best(
    runs: Sequence[ReportRun], ranking: Ranking, metric: str, held_out: str, *, same_split: bool
) -> Markup:
    """The best run, how far it is between chance and ceiling, and whether it is clearly the best."""
    (best, score), alone = ranking.ranked[0], len(ranking.ranked) == 1
    name = Markup("<b>{}</b>").format(best.label)
    number = Markup('{} <span class="number">{}</span> (95 % interval {} to {}').format(
        metric_title(metric, runs), *map(show_number, (score.value, score.low, score.high))
    )
    position = find_position(score, score.value)
    low, high = sorted(find_position(score, end) or 0.0 for end in (score.low, score.high))
    if position is not None and high < 0:
        even, chance = "" if alone else "even ", show_number(score.chance)
        return Markup("On {}, {}{} is below chance: {}, chance {}).").format(held_out, even, name, number, chance)
    if position is not None and not ranking.above_chance:
        return Markup("{} better than chance on {}: {}{} has {}, chance {}).").format(
            "This run is not clearly" if alone else "No run is clearly",
            held_out,
            name,
            "" if alone else ", the highest,",
            number,
            show_number(score.chance),
        )
    clear = not alone and not ranking.tied and same_split
    if alone:
        claim = Markup("On {}, {} reaches {})").format(held_out, name, number)
    elif clear:
        claim = Markup("{} generalises best to {}, with {})").format(name, held_out, number)
    else:
        claim = Markup("{} scores highest on {}, with {})").format(name, held_out, number)
    return claim + _describe_position(position, low, high) + _describe_lead(ranking, clear=clear) + "."


def _describe_position(position: float | None, low: float, high: float) -> str:
    if position is None:
        return ""
    if low <= 0:
        return ", though this interval includes chance"
    if high >= 1:
        return ", where the interval includes the ceiling"
    return f", {100 * position:.0f} % of the way from chance to the ceiling"


def _describe_lead(ranking: Ranking, *, clear: bool) -> Markup:
    if ranking.lead is not None:
        lead = ranking.lead
        return Markup(
            '; paired on the same instances, its difference from <b>{}</b> is <span class="number">{}</span> ({} to {}){}'
        ).format(
            ranking.ranked[1][0].label,
            *map(show_signed, (lead.value, lead.low, lead.high)),
            "" if lead.is_significant else ", so the order is not certain",
        )
    if clear:
        return Markup("; its interval is clear of every other run’s")
    if ranking.tied:
        return Markup(", but its interval overlaps that of {}, so the order is not certain").format(
            _join_labels(ranking.tied)
        )
    return Markup()


def _list_verdicts(groups: Sequence[RunGroup], verdicts: Sequence[Diagnosed]) -> list[tuple[str, str, str, str]]:
    """The verdict of each run, or how many seeds of each group have which verdict."""
    if not groups:
        return [(diagnosis["badge"], diagnosis["verdict"], run.label, "") for run, diagnosis in verdicts]
    rows = []
    for group in groups:
        found = sorted(((diagnosis["verdict"], diagnosis["badge"]) for run, diagnosis in verdicts if run in group.runs))
        for (verdict, badge), members in groupby(found):
            rows.append((badge, verdict, group.label, f", {len(list(members))} of {len(found)} seeds"))
    return rows


def _describe_intervals(runs: Sequence[ReportRun], finished: Sequence[ReportRun], groups: Sequence[RunGroup]) -> str:
    """What the intervals cover, and which runs are left out."""
    if groups:
        pairs = (
            "; with two seeds, both scores are given instead" if any(group.held_out.pair for group in groups) else ""
        )
        words = (
            f"Means over {len(groups[0].runs)} random seeds; each seed has its own split and its own network. "
            f"Intervals are over seeds{pairs}."
        )
    else:
        words = (
            "Each interval is for one trained network: it shows how much the score depends on which compositions were "
            "drawn. Another seed may change it by more."
        )
    return words + (" Runs that have not finished are left out of the answer." if len(runs) > len(finished) else "")


def show_signed(value: float) -> str:
    return ("+" if value > 0 else "") + show_number(value)


def _join_labels(runs: Sequence[ReportRun]) -> Markup:
    """Up to three labels, and how many there are besides."""
    names = [Markup("<b>{}</b>").format(run.label) for run in runs[:3]]
    if len(runs) > 3:
        return Markup(", ").join(names) + escape(f" and {len(runs) - 3} more")
    return Markup(" and ").join(filter(None, (Markup(", ").join(names[:-1]), *names[-1:])))
