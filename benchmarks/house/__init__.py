"""The house measured from its own syntax trees: `python -m benchmarks.house [--json FILE] [--against FILE]`.

Each counter is a function of modules as text, so that a test can plant what it is for, and the same code measures
before and after a change. Product is what production runs, laboratory what compares and proves beside it.
"""
