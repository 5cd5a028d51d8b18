"""Kernels that come with a platform wheel: the level that a CPU has is chosen, and other sources do not fit."""

import shutil
import subprocess
from pathlib import Path

import pytest

from recombine.foundation import native as prebuilt


def test_levels_follow_the_features_of_the_cpu():
    v3, v4 = prebuilt.LEVELS["x86-64-v3"], prebuilt.LEVELS["x86-64-v4"]
    assert prebuilt.list_levels(set(v4)) == ["x86-64-v4", "x86-64-v3"]
    assert prebuilt.list_levels(set(v3)) == ["x86-64-v3"]
    assert prebuilt.list_levels(set(v3) - {"avx2"}) == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
def test_the_highest_level_that_loads_is_taken(tmp_path, monkeypatch):
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return LEVEL; }")
    monkeypatch.setattr(prebuilt, "read_cpu", lambda: {"flags": " ".join(prebuilt.LEVELS["x86-64-v4"])})
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert prebuilt.load_prebuilt(source, tmp_path) is None
    for level, serial, number in (("x86-64-v3", False, 3), ("x86-64-v4", True, 4)):
        path = tmp_path / prebuilt.name_build(source, level, serial=serial)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DLEVEL={number}", "-o", path, source], check=True)
    (tmp_path / prebuilt.name_build(source, "x86-64-v4")).write_bytes(b"broken")
    library = prebuilt.load_prebuilt(source, tmp_path)
    assert library is not None
    assert library.seven() == 4
    assert prebuilt.load_prebuilt(Path("other.c"), tmp_path) is None
