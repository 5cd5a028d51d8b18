"""On Provable Length and Compositional Generalization (arXiv 2402.04875): runs, tables and figures."""
