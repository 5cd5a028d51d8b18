"""Numbers that were once stale or wrong: each mend is taken out of a copy of the package, and its test must fail there."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAILED = 1


# what would be wrong; a file of the package and the test that must fail; the text of the file, and the text that is wrong
FAULTS = """
keys shared by heads or batch
attention/dispatch.py | attention/test_dispatch.py -k broadcasts
- return _expand(q, batch, heads), _expand(k, batch, heads), _expand(v, batch, heads)
+ return q, k, v

heads of different sizes
attention/dispatch.py | attention/test_dispatch.py -k bad_arguments
- if q.shape[3] != k.shape[3]:
+ if False:

fewer values than keys
attention/dispatch.py | attention/test_dispatch.py -k bad_arguments
- if k.shape[1] != v.shape[1]:
+ if False:

a mask that is not bool
attention/dispatch.py | attention/test_dispatch.py -k bad_arguments
- if mask.dtype != torch.bool:
+ if False:

a short bias of a dense layer
attention/dispatch.py | attention/test_dispatch.py -k dense
- if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
+ if False:

large scores
attention/cpu/cpu_normalise.h | attention/test_dispatch.py -k large_scores
- *a = exp2_of((*a - shifts[i]) * LOG2_E);
+ *a = exp2_of(*a * LOG2_E - shifts[i] * LOG2_E);

the ceiling of fuzzy logic knows the split
tasks/fuzzy_logic.py | tasks/test_fuzzy_logic.py -k reach_the_ceiling
- torch.tensor([terms in own for terms in everything])
+ torch.ones(len(everything), dtype=torch.bool)

the best prediction for R² weights by variance
tasks/fuzzy_logic.py | tasks/test_fuzzy_logic.py -k reach_the_ceiling
- enumerate((fits / variance, fits))
+ enumerate((fits, fits))

the ceiling of SRAVEN knows the split
tasks/sraven/task.py | tasks/test_sraven_solver.py -k 'reaches_the_ceiling or knowing_the_split'
- priors = [None if split is None else self.split.compositions(split) for split in splits]
+ priors = [None for split in splits]

a ceiling below chance
training/score.py | inside/test_diagnose.py -k below_chance
- if span > 1e-9:
+ if span:

metrics where less is better
training/score.py | inside/test_diagnose.py -k less_can_be_better
- sign = 1 if higher_is_better else -1
+ sign = 1

scores of NaN
inside/verdict.py | inside/test_diagnose.py -k not_known
- isinstance(number := score.get(key), int | float) and math.isfinite(number)
+ isinstance(number := score.get(key), int | float)

the version of a task is part of the hash
training/config.py | training/test_freshness.py -k version_of_a_task
- {"name": task.name, "version": version_of(task), **settings_as_dict(self.task)}
+ {"name": task.name, "version": 1, **settings_as_dict(self.task)}

the number of evaluated instances
training/run.py | training/test_freshness.py -k other_instances
- (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)
+ version == EVALUATION_VERSION

the version of the evaluation
training/run.py | training/test_freshness.py -k version_of_the_evaluation
- (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)
+ result.get("evaluation_instances") == num_instances

a run resumed by other code
training/session.py | training/test_freshness.py -k both_are_kept
- if step > 0 and (run.path
+ if False and (run.path

the environment names the kernel
training/session.py | training/test_freshness.py -k names_the_kernel
- "kernel": describe_kernel(device),
+ "kernel": "",

headers are part of the source
training/session.py | training/test_freshness.py -k covers_headers
- ".c", ".h")
+ ".c")

the file of another run
foundation/files.py | faults/test_damage.py -k another_run_is_refused
- if found is not None and found[1]
+ if False and found[1]

scores that contradict their sums
training/directory.py | faults/test_damage.py -k contradict
- if name == RESULT and (fault
+ if False and (fault

a probe of an earlier step
inside/result.py | inside/test_probe_cache.py -k 'earlier_step or kept_only'
- "checkpoint": describe_checkpoint(run),
+ "checkpoint": None,

measurements with other arguments
inside/result.py | inside/test_probe_cache.py -k kept_only
- "arguments": dict(arguments),
+ "arguments": {},

measurements of another version
inside/result.py | inside/test_probe_cache.py -k kept_only
- "version": self.version,
-             "arguments"
+ "version": 0,
+             "arguments"

batches that share their memory
tasks/modular/hyperteacher.py | tasks/test_sampling.py -k pure_function
- return Batch(inputs, y, modules, {"composition": composition, "strengths": strengths})
+ return vars(self).setdefault(str((split, stream.parts)), Batch(inputs, y, modules, {"composition": composition, "strengths": strengths}))

training against the gradient
training/config.py | foundation/test_settings.py -k nonsense
- clip is None or clip > 0
+ True

a negative learning rate at the end
training/config.py | foundation/test_settings.py -k nonsense
- 0 <= self.final_fraction <= 1
+ self.final_fraction <= 1

a decay of moments of 1
training/config.py | foundation/test_settings.py -k nonsense
- 0 <= self.beta2 < 1
+ 0 <= self.beta2 <= 1

every set is sampled once
training/score.py | training/test_evaluate.py -k sampled_once
- sums.add_baselines(task, batch)
+ sums.add_baselines(task, task.sample(split, 0, batch_size=len(batch)))

the last layer is the last by number
inside/result.py | papers/test_scale_experiments.py -k last_layer
- sorted(names, key=lambda name: -1 if (layer := describe_site(name)["layer"]) is None else layer)
+ sorted(names)
"""


def read_fault(block: str) -> tuple[str, str, str, str, str]:
    """Name, file, right text, wrong text and test of a fault."""
    name, place, *lines = block.strip("\n").split("\n")
    file, test = place.split(" | ")
    right, wrong = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return name, file, right, wrong, test


CASES = [pytest.param(*found, id=name) for name, *found in map(read_fault, FAULTS.split("\n\n"))]


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


@pytest.mark.parametrize(("file", "right", "wrong", "test"), CASES)
def test_every_guard_is_where_the_table_says(file, right, wrong, test):
    assert wrong != right
    assert (ROOT / "src/recombine" / file).read_text().count(right) == 1
    path, *_, names = shlex.split(test)
    text = (ROOT / "tests" / path).read_text()
    assert any(re.search(rf"def test_\w*{word}", text) for word in names.split(" or ")), test


@pytest.mark.slow
def test_the_copy_passes(copied):
    assert run_tests(copied, "foundation/test_settings.py") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("file", "right", "wrong", "test"), CASES)
def test_the_fault_is_noticed(file, right, wrong, test, copied):
    path = copied / "src/recombine" / file
    text = path.read_text()
    path.write_text(text.replace(right, wrong))
    try:
        code = run_tests(copied, test)
        killed = code < 0  # by a signal: the kernel read out of bounds
        assert code == FAILED or killed
    finally:
        path.write_text(text)
