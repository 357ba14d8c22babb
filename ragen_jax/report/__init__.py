"""The report of a run: one HTML page with its outcome, curves and rollouts, from the run directory alone."""

from ragen_jax.report.figures import FIGURES, FigureOf, save_plots
from ragen_jax.report.page import write_report
from ragen_jax.report.run_directory import Run, read_run
from ragen_jax.report.table import MetricsTable, Series

__all__ = ["FIGURES", "FigureOf", "MetricsTable", "Run", "Series", "read_run", "save_plots", "write_report"]
