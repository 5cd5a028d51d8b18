"""Numbers that were once stale or wrong: each mend is taken out of a copy of the package, and its test must fail there."""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mend of the package and the test that guards it."""

    file: str
    mended: str
    broken: str
    test: str


SHARED = "return _expand(q, batch, heads), _expand(k, batch, heads), _expand(v, batch, heads)"
PLACED = "return float(sign * (value - self.ceiling) >= -1e-9)"
FAULTS = {
    "keys shared by heads or batch": Fault(
        file="attention/dispatch.py",
        mended=SHARED,
        broken="return q, k, v",
        test="attention/test_dispatch.py -k broadcasts",
    ),
    "heads of different sizes": Fault(
        file="attention/dispatch.py",
        mended="if q.shape[3] != k.shape[3]:",
        broken="if False:",
        test="attention/test_dispatch.py -k bad_arguments",
    ),
    "fewer values than keys": Fault(
        file="attention/dispatch.py",
        mended="if k.shape[1] != v.shape[1]:",
        broken="if False:",
        test="attention/test_dispatch.py -k bad_arguments",
    ),
    "a mask that is not bool": Fault(
        file="attention/dispatch.py",
        mended="if mask.dtype != torch.bool:",
        broken="if False:",
        test="attention/test_dispatch.py -k bad_arguments",
    ),
    "a short bias of a dense layer": Fault(
        file="attention/dispatch.py",
        mended="if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):",
        broken="if False:",
        test="attention/test_dispatch.py -k dense",
    ),
    "large scores": Fault(
        file="attention/cpu/cpu_normalise.h",
        mended="*a = exp2_of((*a - shifts[i]) * LOG2_E);",
        broken="*a = exp2_of(*a * LOG2_E - shifts[i] * LOG2_E);",
        test="attention/test_dispatch.py -k large_scores",
    ),
    "the ceiling of fuzzy logic knows the split": Fault(
        file="tasks/fuzzy_logic/task.py",
        mended="torch.tensor([composition in own for composition in everything])",
        broken="torch.ones(len(everything), dtype=torch.bool)",
        test="test_ceiling_fuzzy_logic.py -k 'reaches_the_ceiling or do_not_exceed'",
    ),
    "the best prediction for R² weights by variance": Fault(
        file="tasks/fuzzy_logic/posterior.py",
        mended="enumerate((fits / variance, fits))",
        broken="enumerate((fits, fits))",
        test="test_ceiling_fuzzy_logic.py -k 'reaches_the_ceiling or smaller_expected_error'",
    ),
    "the ceiling of SRAVEN knows the split": Fault(
        file="tasks/sraven/task.py",
        mended="priors = [None if split is None else self.split.compositions(split) for split in splits]",
        broken="priors = [None for split in splits]",
        test="test_ceiling_sraven.py -k 'reaches_the_ceiling or knowing_the_split'",
    ),
    "a ceiling below chance": Fault(
        file="inside/verdict.py",
        mended="if span > 1e-9:",
        broken="if span:",
        test="inside/test_diagnose.py -k below_chance",
    ),
    "metrics where less is better": Fault(
        file="inside/verdict.py",
        mended="sign = 1 if higher_is_better else -1",
        broken="sign = 1",
        test="inside/test_diagnose.py -k less_can_be_better",
    ),
    "scores of NaN": Fault(
        file="inside/verdict.py",
        mended="isinstance(number := score.get(key), int | float) and math.isfinite(number)",
        broken="isinstance(number := score.get(key), int | float)",
        test="inside/test_diagnose.py -k not_known",
    ),
    "the version of a task is part of the hash": Fault(
        file="run/config.py",
        mended='{"name": task.name, "version": version_of(task), **settings_as_dict(self.task)}',
        broken='{"name": task.name, "version": 1, **settings_as_dict(self.task)}',
        test="test_freshness.py -k version_of_a_task",
    ),
    "the number of evaluated instances": Fault(
        file="run/records.py",
        mended='(version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)',
        broken="version == EVALUATION_VERSION",
        test="test_freshness.py -k other_instances",
    ),
    "the version of the evaluation": Fault(
        file="run/records.py",
        mended='(version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)',
        broken='result.get("evaluation_instances") == num_instances',
        test="test_freshness.py -k version_of_the_evaluation",
    ),
    "a run resumed by other code": Fault(
        file="run/records.py",
        mended="if step > 0 and (run.path",
        broken="if False and (run.path",
        test="test_freshness.py -k both_are_kept",
    ),
    "the environment names the kernel": Fault(
        file="store/environment.py",
        mended='"kernel": describe_kernel(device),',
        broken='"kernel": "",',
        test="test_freshness.py -k names_the_kernel",
    ),
    "headers are part of the source": Fault(
        file="store/environment.py", mended='".c", ".h")', broken='".c")', test="test_freshness.py -k covers_headers"
    ),
    "a probe of an earlier step": Fault(
        file="inside/result.py",
        mended='"checkpoint": describe_checkpoint(run) if self.uses_checkpoint else None,',
        broken='"checkpoint": None,',
        test="inside/test_probe_cache.py -k 'earlier_step or kept_only'",
    ),
    "measurements with other arguments": Fault(
        file="inside/result.py",
        mended='"arguments": dict(arguments),',
        broken='"arguments": {},',
        test="inside/test_probe_cache.py -k kept_only",
    ),
    "measurements of another version": Fault(
        file="inside/result.py",
        mended='"version": self.version,\n            "arguments"',
        broken='"version": 0,\n            "arguments"',
        test="inside/test_probe_cache.py -k kept_only",
    ),
    "batches that share their memory": Fault(
        file="tasks/modular/hyperteacher.py",
        mended='return Batch(inputs, y, modules, {"composition": composition, "strengths": strengths})',
        broken="return self.__dict__.setdefault(str((split, stream.parts)), "
        'Batch(inputs, y, modules, {"composition": composition, "strengths": strengths}))',
        test="test_sampling.py -k pure_function",
    ),
    "training against the gradient": Fault(
        file="train/config.py", mended="clip is None or clip > 0", broken="True", test="test_settings.py -k nonsense"
    ),
    "a negative learning rate at the end": Fault(
        file="train/config.py",
        mended="0 <= self.final_fraction <= 1",
        broken="self.final_fraction <= 1",
        test="test_settings.py -k nonsense",
    ),
    "a decay of moments of 1": Fault(
        file="train/config.py",
        mended="0 <= self.beta2 < 1",
        broken="0 <= self.beta2 <= 1",
        test="test_settings.py -k nonsense",
    ),
    "every set is sampled once": Fault(
        file="evaluate/scores.py",
        mended="sums.add_baselines(task, batch)",
        broken="sums.add_baselines(task, task.sample(split, 0, batch_size=len(batch)))",
        test="test_evaluate.py -k sampled_once",
    ),
    "the last layer is the last by number": Fault(
        file="inside/result.py",
        mended='ordered = sorted(names, key=lambda name: -1 if (layer := describe_site(name)["layer"]) is None else layer)',
        broken="ordered = sorted(names)",
        test="test_scale.py -k last_layer",
    ),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copied")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("src", "tests", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, test: str) -> int:
    """The exit code of pytest in a copy of the repository."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    options = ["-qq", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    command = [sys.executable, "-m", "pytest", *options, *shlex.split(f"tests/{test}")]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, timeout=600, check=False
    ).returncode


@pytest.mark.slow
def test_the_copy_passes(copied):
    assert run_tests(copied, "test_settings.py") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_noticed(name, copied):
    fault = FAULTS[name]
    path = copied / "src/recombine" / fault.file
    text = path.read_text()
    assert text.count(fault.mended) == 1
    path.write_text(text.replace(fault.mended, fault.broken))
    try:
        code = run_tests(copied, fault.test)
        killed = code < 0  # by a signal: the kernel read out of bounds
        assert code == FAILED or killed
    finally:
        path.write_text(text)


def test_an_unquoted_shape_is_an_undefined_name(tmp_path):
    """Shapes are quoted with a leading space, so that the linter can look for undefined names everywhere."""
    path = tmp_path / "annotated.py"
    path.write_text(
        '"""A module."""\n\nfrom jaxtyping import Float\nfrom torch import Tensor\n\nX = Float[Tensor, rows]\n'
    )
    command = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 1
    assert "F821" in checked.stdout
