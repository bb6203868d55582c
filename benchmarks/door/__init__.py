"""The planner's figures as its user meets them: the command, its answer, and what the answer cost."""
