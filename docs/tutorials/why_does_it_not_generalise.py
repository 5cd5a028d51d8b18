# %% [markdown]
# # Why does it not generalise?
#
# A linear hypernetwork is trained on two fifths of the compositions of modules. It fits them and fails on the
# held-out ones. Why? Probe the run, then ask for a verdict: *not learned*, *uncovered*, *not inferred*, *inferred but
# unused*, *ambiguous* or *solved*. The [glossary](../glossary.md#verdict) says what each means.

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import recombine

folder = Path(tempfile.mkdtemp())
STEPS = 2_000
run = recombine.default_run(recombine.Hyperteacher, "small", "hypernetwork")
run = replace(run, task=replace(run.task, held_out=0.6), training=replace(run.training, steps=STEPS))
directory = recombine.train_run(run, out=folder, evaluation_instances=300)

# %% [markdown]
# `probe_run` measures which modules can be decoded from the network's activations, and what happens when latent codes
# are changed. `diagnose_run` turns these numbers into a verdict. On the command line, `recombine diagnose RUN` does both.

# %%
recombine.probe_run(directory.path, num_instances=200, tsne=False)
diagnosis = recombine.diagnose_run(directory.path)
print(diagnosis.verdict)
print(diagnosis.sentence)
print("next:", diagnosis.advice)

# %% [markdown]
# The verdict comes with its evidence. If an interval includes a threshold, the verdict is uncertain, and `alternatives`
# names the other verdicts that are possible.

# %%
for name in ("trained", "held_out"):
    score = diagnosis.evidence[name]
    print(f"{name}: {score['value']:.3f}, {100 * score['placed']:.0f} % of the way from chance to ceiling")
print("could also be:", ", ".join(diagnosis.alternatives) or "nothing else")
