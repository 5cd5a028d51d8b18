"""The file of hashes and the file of versions agree."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def versions(name: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {package.lower().replace("_", "-"): version for package, version in found}


def test_every_locked_version_is_the_tested_one_and_has_a_hash():
    locked, tested = versions("requirements.lock"), versions("constraints.txt")
    assert len(locked) > 70
    assert {name: tested[name] for name in locked if name in tested} == {
        name: version for name, version in locked.items() if name in tested
    }
    assert len(
        re.findall(r"--hash=sha256:[0-9a-f]{64}$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    ) == len(locked)
    assert "torch" not in locked
