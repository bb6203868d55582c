"""From a snapshot to the joint problem."""
