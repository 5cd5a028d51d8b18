"""Write docs/claims_rules.md: the verdicts on docs/claims.md before and after the rules of verdicts changed.

python docs/compare_claims.py BEFORE [AFTER] > docs/claims_rules.md     revisions of git; AFTER: default the working copy
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PAGE = "docs/claims.md"
Row = tuple[str, str, str]  # the experiment's question, the claim, the setting
INTRODUCTION = """# Verdicts before and after the rules

One seed decides nothing, intervals are Student's, a lead is shown next to its excess, and other rules that
`src/recombine_papers/claims.py` lists: they were written down (commit "Rules of verdicts,
written down before they are applied") before they were applied. This page compares the
rows of [the card](claims.md) before and after them.
No run was made or left out in between. Written by
`python docs/compare_claims.py {revisions} > docs/claims_rules.md`.
"""


def read_verdicts(page: str) -> dict[Row, str]:
    """The verdict of every row of the page, by its experiment, claim and setting; rows "in short" are left out."""
    verdicts: dict[Row, str] = {}
    question = claim = ""
    for line in page.partition("## In short")[2].splitlines():
        if line.startswith("### "):
            question = line[4:]
        elif folded := re.fullmatch(r"\*([^*].*)\*", line):
            claim = folded[1]
        elif question and (cells := re.fullmatch(r"\| (.*) \|", line)):
            first, verdict = cells[1].split(" | ")[:2]
            if first not in ("claim", "setting", "---"):
                text, _, setting = first.rpartition("<br>*") if first.endswith("*") else (first, "", "")
                row = (
                    (question, text, setting.rstrip("*")) if text != first or "(" in first else (question, claim, first)
                )
                verdicts[row] = verdict.partition("<br>")[0].strip("*")
    return verdicts


def main() -> None:
    revisions = sys.argv[1:]
    pages = [subprocess.check_output(["git", "show", f"{name}:{PAGE}"], text=True) for name in revisions]
    before, after = map(read_verdicts, [*pages, Path(PAGE).read_text(encoding="utf-8")][:2])
    order = list(dict.fromkeys([*before.values(), *after.values()]))
    counts = Counter(before.values()), Counter(after.values())
    shared = [row for row in before if row in after]
    moved = Counter((before[row], after[row]) for row in shared if before[row] != after[row])
    print(INTRODUCTION.format(revisions=" ".join(revisions)))
    print("| verdict | rows before | rows after |\n| --- | ---: | ---: |")
    print(*(f"| {name} | {counts[0][name]} | {counts[1][name]} |" for name in order), sep="\n")
    print(f"| all | {len(before)} | {len(after)} |\n")
    print(f"{sum(moved.values())} of {len(shared)} rows on both pages moved:\n")
    print("| before | after | rows |\n| --- | --- | ---: |")
    print(*(f"| {old} | {new} | {count} |" for (old, new), count in moved.most_common()), sep="\n")
    for title, rows in (
        ("Rows that moved", [row for row in shared if before[row] != after[row]]),
        ("Rows that are gone, or have another text", [row for row in before if row not in after]),
        ("Rows that are new, or have another text", [row for row in after if row not in before]),
    ):
        print(f"\n## {title}\n\n| claim | setting | before | after |\n| --- | --- | --- | --- |")
        for row in rows:
            print(f"| {row[1]} | {row[2] or '–'} | {before.get(row, '–')} | {after.get(row, '–')} |")


if __name__ == "__main__":
    main()
