"""Seeded faults in formulas and rules of the five policies and of our own planner, and who notices each.

`python -m benchmarks.mutants` (`make mutants`) applies each in a scratch copy of the checkout and runs what should
catch it. What is seeded is data: one file for each system in `seeded/`.
"""
