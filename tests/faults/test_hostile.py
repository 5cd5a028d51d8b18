"""Files from strangers: nothing in them runs, nothing is written outside the chosen folder, nothing is hidden."""

import ast
import json
import shutil
from pathlib import Path

import pytest

import recombine
from recombine.foundation.errors import InputError
from recombine.models.base import OutsideModule
from recombine.report.page import write_report
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig
from recombine.training.run import open_directory
from report_cases import HOSTILE, make_probed, make_run, make_score
from small_runs import FAMILIES, train

SOURCE = Path(recombine.__file__).parent
FORBIDDEN = {"eval", "exec", "compile", "__import__"}
# where a name becomes a module: verbs, optional packages, classes of this package and code that the user names
IMPORTERS = {"cli/main.py", "foundation/errors.py", "foundation/files.py"}


def calls_in(path: Path) -> set[str]:
    """The names of the functions that a file calls, such as `torch.load`."""
    tree = ast.parse(path.read_text())
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_no_file_of_the_package_evaluates_or_unpickles():
    for path in SOURCE.rglob("*.py"):
        calls = calls_in(path)
        assert not calls & FORBIDDEN, path
        called = calls - {"element.paths.result_pickle.exists"}  # whether submitit has written its file
        unsafe = {call for call in called if "pickle" in call or call in ("torch.load", "yaml.load", "os.system")}
        assert not unsafe, path
        assert "allow_pickle=True" not in path.read_text(), path
        assert "shell=True" not in path.read_text(), path
        if any(call.endswith(("import_module", "exec_module")) for call in calls):
            assert path.relative_to(SOURCE).as_posix() in IMPORTERS, f"{path} imports by name"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return train(FAMILIES["hyperteacher"], tmp_path_factory.mktemp("runs")).path


@pytest.fixture
def run(pristine, tmp_path):
    return Path(shutil.copytree(pristine, tmp_path / pristine.name))


@pytest.mark.parametrize("role", ["task", "model"])
def test_a_name_in_a_file_is_never_imported(role, run, tmp_path):
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((run / "config.json").read_text())
    key = {"task": "name", "model": "kind"}[role]
    for name in (f"{tmp_path / 'evil.py'}:X", "os:system", "evil", "../evil"):
        config[role][key] = name
        config["origins"] = {role: f"{tmp_path / 'evil.py'}:X"}
        (run / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match="is not part of this package"):
            load_run(run)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["../../../x", "/etc/x", "..", "a/b\\c", "x\0y", "\u202ex", "-rf"])
def test_no_name_leads_out_of_the_folder(name, tmp_path):
    config = FAMILIES["hyperteacher"]
    hostile = RunConfig(task=config.task, model=OutsideModule(name=name, fingerprint="0"), training=config.training)
    made = open_directory(hostile, tmp_path / "runs", {}).path
    assert made.resolve().parent == (tmp_path / "runs").resolve()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_policy_of_the_page_blocks_scripts_that_are_not_its_own(browser, tmp_path):
    """Even if escaping failed somewhere: a script, a handler and a request that are put into the page do nothing."""
    runs = [make_run(tmp_path / "runs", HOSTILE[:50], make_score(0.8)), make_probed(tmp_path / "runs", HOSTILE[:40])]
    write_report(runs, tmp_path / "report.html", title=HOSTILE)
    page = (tmp_path / "report.html").read_text()
    planted = (
        "<script>document.title = 'planted'</script>"
        "<img src='http://127.0.0.1:9/x.png' onerror=\"document.title = 'planted'\">"
        "<iframe srcdoc=\"<script>parent.document.title = 'planted'</script>\"></iframe></body>"
    )
    (tmp_path / "planted.html").write_text(page.replace("</body>", planted))
    browser.open(tmp_path / "planted.html")
    browser.run("new Promise(resolve => setTimeout(resolve, 300))")
    assert browser.run("document.title") != "planted"
    assert browser.run("document.querySelector('h1').textContent") == HOSTILE
    asked = [address for address in browser.find_requests() if address.startswith("http")]
    failed = [event["params"] for event in browser.events if event["method"] == "Network.loadingFailed"]
    assert [event.get("blockedReason") for event in failed] == ["csp"] * len(asked)


def test_a_named_script_is_text(browser, tmp_path):
    runs = [make_run(tmp_path / "runs", name, make_score(0.8)) for name in ("<script>alert(1)</script>", "hyla")]
    write_report(runs, tmp_path / "report.html", title="t")
    browser.open(tmp_path / "report.html")
    assert "<script>alert(1)</script>" in browser.run("document.body.textContent")
    assert browser.find_troubles() == []
