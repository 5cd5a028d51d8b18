"""Prompts for language models: a JSON-lines file, and tasks for lm-evaluation-harness that read local files only.

FOLDER/prompts.jsonl                    every row: row_id, split, prompt, targets (all right answers)
FOLDER/recombine_<task>_<split>.jsonl   the same, per split, for the harness
FOLDER/recombine_<task>_<split>.yaml    a task of the harness; its filters are the two parsers
FOLDER/recombine_<task>.yaml            the group of them
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recombine.foundation.errors import InputError
from recombine.foundation.files import write_output
from recombine.integrations.exchange.export import RowId, encode_json_lines, hash_export
from recombine.tasks.base import Task
from recombine.tasks.sampling import SplitName, evaluation_batches
from recombine.tasks.text import IGNORED, PARSERS, TextForm

MAX_EXAMPLES = 64
ANSWER_TOKENS, REASONING_TOKENS = 64, 2_048


def write_text(
    task: Task,
    splits: Sequence[SplitName],
    num_instances: int,
    folder: Path,
    *,
    num_examples: int = 0,
    reasoning: bool = False,
    blind: bool = False,
) -> list[Path]:
    """Write prompts and tasks to a folder; returns the files. With `blind`, prompts without answers, and no tasks."""
    if not 0 <= num_examples <= MAX_EXAMPLES:
        raise InputError(f"num_examples is {num_examples}: expected 0 to {MAX_EXAMPLES}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file: expected a folder for the prompts and tasks")
    form = task.text_form()
    rows = {
        split: make_prompts(form, split, num_instances, num_examples=num_examples, reasoning=reasoning)
        for split in splits
    }
    columns = ("row_id", "split", "prompt", *([] if blind else ["targets"]))
    every = [{name: row[name] for name in columns} for part in rows.values() for row in part]
    files = {folder / "prompts.jsonl": encode_json_lines(every)}
    if not blind:
        name = f"recombine_{task.name}"
        for split, part in rows.items():
            data = folder / f"{name}_{split}.jsonl"
            files[data] = encode_json_lines(part)
            files[data.with_suffix(".yaml")] = write_task(form, f"{name}_{split}", data, reasoning=reasoning).encode()
        group = {"group": name, "task": [f"{name}_{split}" for split in splits]}
        files[folder / f"{name}.yaml"] = _write_yaml(group).encode()
    for path, content in files.items():
        write_output(path, content)
    return list(files)


def make_prompts(
    form: TextForm, split: SplitName, num_instances: int, *, num_examples: int = 0, reasoning: bool = False
) -> list[dict[str, Any]]:
    """The rows of a split as prompts with all their right answers."""
    examples, export = form.write_examples(num_examples), hash_export(form.task)
    rows: list[dict[str, Any]] = []
    for batch in evaluation_batches(form.task, split, num_instances):
        for row in range(len(batch)):
            identity = RowId(split, len(rows), num_instances, export)
            prompt = form.write_prompt(batch, row, examples=examples, reasoning=reasoning)
            targets = form.write_answers(batch, row)
            rows.append({"row_id": str(identity), "split": split, "prompt": prompt, "targets": targets})
    return rows


def write_task(form: TextForm, name: str, data: Path, *, reasoning: bool) -> str:
    """A task of lm-evaluation-harness. Its filters have the names and expressions of the parsers."""
    filters = [
        {
            "name": parser,
            "filter": [
                {"function": "regex", "regex_pattern": form.expression(parser), "group_select": -1},
                {"function": "take_first"},
            ],
        }
        for parser in PARSERS
    ]
    match: dict[str, Any] = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    match |= {"ignore_case": True, "regexes_to_ignore": [IGNORED]}
    return _write_yaml(
        {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "prompt",
            "doc_to_target": "targets",
            "num_fewshot": 0,
            "generation_kwargs": {
                "until": ["</s>"] if reasoning else ["\n"],
                "do_sample": False,
                "max_gen_toks": REASONING_TOKENS if reasoning else ANSWER_TOKENS,
            },
            "filter_list": filters,
            "metric_list": [match],
            "metadata": {"version": 1, "export": hash_export(form.task)},
        }
    )


def _write_yaml(value: dict[str, Any]) -> str:
    """One key per line; JSON is YAML."""
    return "".join(f"{key}: {json.dumps(item, ensure_ascii=False)}\n" for key, item in value.items())
