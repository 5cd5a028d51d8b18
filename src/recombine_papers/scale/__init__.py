"""Scaling can lead to compositional generalization: runs, measures, claims and figures."""
