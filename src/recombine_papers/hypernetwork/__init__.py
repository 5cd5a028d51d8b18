"""Attention as a Hypernetwork: runs, measures, claims and figures."""
