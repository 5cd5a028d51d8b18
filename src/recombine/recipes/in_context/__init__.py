"""When can transformers compositionally generalize in-context? (arXiv 2407.12275): runs, claims and figures."""
