"""On Provable Length and Compositional Generalization: runs, measures, claims and figures."""
