"""What is seen of the fleet while it runs."""
