"""The cycle of a lane: what is read, solved, promoted and written down."""
