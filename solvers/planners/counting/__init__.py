"""Solving problems of counts (`solvers.problems.counts`) with whatever engine is at hand."""
