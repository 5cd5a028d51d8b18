# %% [markdown]
# # Bring a task
#
# A task is a frozen dataclass in one file. It says what is composed, how an instance is made, how a prediction is
# scored, and what the best possible prediction is. `examples/own_task.py` is a complete one, *Waves*: a function
# is the sum of two out of eight sine waves. Copy it and change it. On the command line it works with every verb:
#
# ```console test
# recombine show examples/own_task.py:Waves
# recombine check examples/own_task.py:Waves
# recombine train examples/own_task.py:Waves --scale tiny
# ```
#
# The smallest part is the split. Compositions are sets of modules, and the split is drawn from a hash, so it is
# the same everywhere.

# %%
import recombine

compositions = recombine.all_sets(8, 2)
split = recombine.split_compositions(compositions, held_out=0.25, seed=0)
certificate = split.certificate
print(len(compositions), "compositions:", certificate.num_train, "trained,", certificate.num_ood, "held out")
print("every module trained at least", certificate.min_coverage, "times; SHA-256", certificate.sha256[:12])

# %% [markdown]
# A split that leaves a module untrained cannot test recombination, so it is drawn again. If no split can cover all
# modules, there is an error.

# %%
try:
    recombine.split_compositions(compositions, held_out=0.99, seed=0)
except recombine.InputError as error:
    print(error)
