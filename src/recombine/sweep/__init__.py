"""Sweeps: many runs from one Python file, trained by an engine, never twice. `recombine sweep status` needs no torch."""
