"""What is done with capacity that nobody needs: training, and capacity as a goal."""
