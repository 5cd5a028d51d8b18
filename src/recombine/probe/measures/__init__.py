"""Measurements of a run beyond `probe.json`. Each is kept in its directory, in a file of its own (see `probe.cache`)."""
