"""What is opened again in a cycle, what is held, and what is remembered of the last one."""
