"""What the published systems claim, and what is measured here: one module per system."""
