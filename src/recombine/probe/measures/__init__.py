"""Measurements of a run that are kept in its directory, each in a file of its own."""
