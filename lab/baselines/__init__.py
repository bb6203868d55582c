"""Policies that ours are compared with, each with the tuning that its paper or product describes."""
