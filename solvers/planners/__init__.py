"""Planners turn a snapshot into a proposal with reasons; they never import each other's insides and never touch the
world.
"""
