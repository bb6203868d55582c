"""What was measured, read from many forms and kept."""
