"""What stands around a solve: its time, its seats, its rivals and its bound."""
