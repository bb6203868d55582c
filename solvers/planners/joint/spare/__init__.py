"""What is done with spare capacity: filling devices that are in use, and capacity as a goal."""
