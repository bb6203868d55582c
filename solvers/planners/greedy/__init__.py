"""Planner `greedy`: cheapest promise-keeping configuration per workload, best-fit-decreasing on the devices."""

from solvers.planners.greedy.planner import Greedy
