"""One planning cycle from snapshot to record; it decides what happens and leaves doing it to the ports."""
