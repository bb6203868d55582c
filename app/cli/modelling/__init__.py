"""Commands that fit, predict and read measurements."""
