"""Feedback controllers that run between plans, standard library only, shared by node agents and the simulator."""
