"""What Python imports from where: the local modules of a user's file, and nothing from the current folder in child processes."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Let the Python processes that are started in this block not import from the folder that they are started in.

    `python -c` and `python -m` put it first, so that a file there with the name of a module would run instead of the module.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


# a variable of the environment whose name stands in the code
READS_VARIABLE = re.compile(r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["'](\w+)["']""")


def describe_imports(path: Path) -> list[str]:
    """What a file's code depends on beyond itself: its local modules with their hashes, and its environment variables.

    Local modules are those that it imports, directly or through each other, and that are not part of an installed package.
    Variables count if they are set, and if the code names them where it reads them.
    """
    files, found = [path], [path]
    while files:
        file = files.pop()
        new = [each for each in _find_imports(file, file.stat().st_mtime_ns, tuple(sys.path)) if each not in found]
        files += new
        found += new
    variables = {
        name for file in found for name in READS_VARIABLE.findall(file.read_text(encoding="utf-8", errors="replace"))
    }
    modules = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in found[1:]]
    return sorted(modules) + sorted(f"{name}={os.environ[name]}" for name in variables if name in os.environ)


@cache
def _find_imports(path: Path, changed: int, folders: tuple[str, ...]) -> list[Path]:
    """The files of the local modules that a file imports; `changed` is its time, for the cache."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return []
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names, roots = [alias.name for alias in node.names], [Path(folder) for folder in folders]
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
            roots = (
                [path.parents[min(node.level, len(path.parents)) - 1]]
                if node.level
                else [Path(folder) for folder in folders]
            )
        else:
            continue
        found += [file.resolve() for name in names for file in _locate(name, roots)]
    return [file for file in dict.fromkeys(found) if not _is_installed(file)]


def _locate(name: str, roots: Iterable[Path]) -> list[Path]:
    """The files of a dotted name in the first folder that has its first part: of its packages, its module, not its members."""
    parts = name.split(".")
    if parts[0] in sys.stdlib_module_names:
        return []
    for root in roots:
        steps = [root.joinpath(*parts[: number + 1]) for number in range(len(parts))]
        candidates = [file for step in steps for file in (step.with_suffix(".py"), step / "__init__.py")]
        files = [file for file in candidates if file.is_file()]
        if files or steps[0].is_dir():
            return files
    return []


@cache
def _installed_folders() -> list[Path]:
    own = Path(__file__).parents[2]  # with the packages next to this one
    folders: list[str | Path] = [
        *site.getsitepackages(),
        site.getusersitepackages(),
        sysconfig.get_paths()["stdlib"],
        own,
    ]
    return [Path(folder).resolve() for folder in folders]


def _is_installed(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in _installed_folders())
