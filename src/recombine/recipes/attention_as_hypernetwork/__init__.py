"""Attention as a Hypernetwork (arXiv 2406.05816): runs, claims and published numbers."""
