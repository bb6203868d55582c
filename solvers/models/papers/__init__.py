"""Performance models of the five papers and of iGniter, each to its formulas."""
