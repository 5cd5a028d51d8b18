"""The figures of a report for papers and slides, as PNG and SVG files by Matplotlib."""

from recombine.report.printed.runs import static_figures

__all__ = ["static_figures"]
