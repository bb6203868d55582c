"""The arena's report: tables, plots, one page."""
