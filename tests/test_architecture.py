"""Imports point one way, the public names exist, and importing is cheap."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import recombine
import recombine_papers

SOURCE = Path(recombine.__file__).parent
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"

# Each room may import from itself and from the rooms before it.
ROOMS = (
    "foundation",
    "random",
    "compositions",
    "attention",
    "tasks",
    "models",
    "training",
    "inside",
    "sweeps",
    "integrations",
    "report",
    "cli",
    "__main__",
)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "recombine" and len(parts) > 1 else None


def imported_rooms(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    rooms = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] + ([f"recombine.{a.name}" for a in node.names] if node.module == "recombine" else [])
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {room for name in names if (room := room_of(name))}
    return rooms


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py")


def test_imports_point_one_way():
    wrong = {}
    for path in FILES:
        name = path.relative_to(SOURCE)
        allowed = ROOMS[: ROOMS.index(name.parts[0].removesuffix(".py")) + 1]
        if others := imported_rooms(path) - set(allowed):
            wrong[str(name)] = others
    assert wrong == {}, "a room imports only from itself and the rooms before it"


def test_the_documented_layout_is_the_order_of_the_rooms():
    layout = ARCHITECTURE.read_text().partition("src/recombine/\n")[2].partition("src/recombine_papers/")[0]
    rooms = [line.split()[0].rstrip("/").removesuffix(".py") for line in layout.splitlines() if line[:3].strip()]
    assert rooms[1:] == list(ROOMS)


TESTS = Path(__file__).parent
ALL_FILES = [*FILES, *sorted(TESTS.rglob("*.py"))]


def test_every_file_says_what_it_is_and_stays_readable():
    texts = {"/".join(path.parts[-3:]): path.read_text() for path in ALL_FILES}
    assert [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))] == []
    assert [name for name, text in texts.items() if len(text.splitlines()) > 700] == []


def test_nothing_a_user_loads_can_run_code():
    forbidden = ("import pickle", "torch.load(")
    assert [path.name for path in FILES if any(words in path.read_text() for words in forbidden)] == []


PUBLIC = ("recombine", *(f"recombine.{room}" for room in ROOMS if (SOURCE / room / "__init__.pyi").exists()))


@pytest.mark.parametrize("room", PUBLIC)
def test_public_names(room):
    module = importlib.import_module(room)
    for name in module.__all__:
        assert getattr(module, name) is not None
        # a name that a submodule has too would become that submodule once it is imported
        assert name == "__version__" or importlib.util.find_spec(f"{room}.{name}") is None
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_the_papers_use_public_names_only():
    private = []
    for path in sorted(Path(recombine_papers.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module and module.split(".")[0] == "recombine":
                private += [f"{path.name}: {module}.{name}" for name in names if not is_public(module, name)]
            elif isinstance(node, ast.Import):
                private += [f"{path.name}: {name}" for name in names if name.split(".")[0] == "recombine"]
    assert private == []


def is_public(module: str, name: str) -> bool:
    """Whether a room lists the name, or a module at the top of the package defines it."""
    if module in PUBLIC:
        return name in importlib.import_module(module).__all__
    return module in ("recombine.compositions", "recombine.random") and not name.startswith("_")


def fastest(program: str) -> float:
    """The least of three numbers that a program prints in a fresh interpreter."""
    return min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3))


def test_importing_adds_little_to_torch():
    program = "import torch, time; start = time.perf_counter(); import recombine; print(time.perf_counter() - start)"
    assert fastest(program) < 0.3


def test_help_needs_no_torch_and_little_time():
    program = "import sys, recombine.cli.main; recombine.cli.main.run(['--help']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    timed = (
        "import contextlib, io, time; start = time.perf_counter(); import recombine.cli.main\n"
        "with contextlib.redirect_stdout(io.StringIO()): recombine.cli.main.run(['--help'])\n"
        "print(time.perf_counter() - start)"
    )
    assert fastest(timed) < 1
