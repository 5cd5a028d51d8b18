"""When can transformers compositionally generalize in-context?: runs, measures, claims and figures."""
