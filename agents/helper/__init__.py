"""The privileged helper: a small process that writes device settings for an agent that runs without privilege."""
