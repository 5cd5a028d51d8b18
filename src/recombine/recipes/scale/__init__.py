"""Scaling can lead to compositional generalization (arXiv 2507.07207): runs, tables and figures."""
