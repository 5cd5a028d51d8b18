"""When can transformers compositionally generalize in-context? (arXiv 2407.12275): runs, claims and figures."""

from recombine.recipes.in_context.runs import InContextExperiment

EXPERIMENTS = (InContextExperiment(),)

__all__ = ["EXPERIMENTS"]
