# %% [markdown]
# # Why does it not generalise?
#
# A trained run is probed and then gets a verdict: *not learned*, *uncovered*, *not inferred*, *inferred but
# unused*, *ambiguous* or *solved*. The [glossary](../glossary.md#verdict) says what each means.

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import recombine

folder = Path(tempfile.mkdtemp())
STEPS = 60  # so that this page runs in seconds; a real run takes thousands
run = recombine.default_run(recombine.Hyperteacher, "tiny")
run = replace(run, training=replace(run.training, steps=STEPS, warmup_steps=10))
directory = recombine.train_run(run, out=folder, evaluation_instances=300)

# %% [markdown]
# `probe_run` reads the network: which modules can be decoded from its activations, and what happens when they are
# changed. `diagnose_run` weighs the numbers. The command line does both: `recombine diagnose RUN`.

# %%
recombine.probe_run(directory.path, num_instances=200, tsne=False)
diagnosis = recombine.diagnose_run(directory.path)
print(diagnosis.verdict)
print(diagnosis.sentence)
print("next:", diagnosis.advice)

# %% [markdown]
# The verdict comes with its evidence. If an interval includes a threshold, `alternatives` names the verdicts at
# its ends.

# %%
for name in ("trained", "held_out"):
    score = diagnosis.evidence[name]
    print(f"{name}: {score['value']:.3f}, {score['placed']:.0%} of the way from chance to ceiling")
print("could also be:", diagnosis.alternatives)
