"""The living room: a supervisor that runs the whole control plane on one machine, its demo fleet, and the traffic
that its users make.
"""
