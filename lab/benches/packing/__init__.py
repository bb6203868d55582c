"""Hosts for pods that come one by one: what to keep free for those expected, and where each goes."""
