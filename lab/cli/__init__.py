"""The laboratory's commands of the program `headroom`."""
