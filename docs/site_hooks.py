"""Hooks of the documentation site: pages from tutorial scripts, blocks without the marks that the tests read, and a
navigation that no page can be missing from.

A tutorial is a script in the percent format of jupytext (`# %% [markdown]` and `# %%` cells). The tests run it. It becomes a
page here, and a notebook with `make notebooks`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent


def convert(script: str) -> str:
    """A script in percent format as a page."""
    parts = []
    for cell in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, _, body = cell.partition("\n")
        if "[markdown]" in head:
            parts.append(re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE))
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def tidy_nav(nav: list[Any], pages: set[str]) -> list[Any]:
    """The navigation without pages that do not exist, and with all task cards."""
    tidied: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            tidied += [entry] if entry in pages else []
            continue
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            inside = tidy_nav(inside, pages)
            if title == "Tasks":
                inside += sorted(page for page in pages if page.startswith("tasks/") and page not in inside)
        if inside:
            tidied.append({title: inside})
    return tidied


def list_named(nav: list[Any]) -> set[str]:
    """Every page that a navigation names."""
    named: set[str] = set()
    for entry in nav:
        for value in [entry] if isinstance(entry, str) else entry.values():
            named |= list_named(value) if isinstance(value, list) else {value}
    return named


def on_page_markdown(markdown: str, **context: Any) -> str:
    """A page whose fenced blocks name their language alone; what follows it is for tests/documented.py. Results are in the site."""
    markdown = markdown.replace("](../results/", "](results/")
    return re.sub(r"^(```\w+) [^\n`]+$", r"\1", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **context: Any) -> str:
    """A page whose columns of words are wide enough to read next to columns of numbers."""
    html = re.sub(r"<th([^>]*)>(verdict|meaning|contents)</th>", r'<th\1 class="words">\2</th>', html)
    return re.sub(r"<th([^>]*)>(claim|fault)</th>", r'<th\1 class="sentence">\2</th>', html)


def on_files(files: Files, config: Any) -> Files:
    for script in sorted((DOCS / "tutorials").glob("*.py")):
        page = File.generated(config, f"tutorials/{script.stem}.md", content=convert(script.read_text()))
        files.append(page)
    for results in sorted((DOCS.parent / "results").glob("*.json*")):
        files.append(File.generated(config, f"results/{results.name}", content=results.read_text()))
    pages = {file.src_uri for file in files.documentation_pages()}
    nav = tidy_nav(config["nav"], pages)
    missing = sorted(pages - list_named(nav))
    config["nav"] = [*nav, {"More pages": missing}] if missing else nav
    return files
