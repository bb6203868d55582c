"""What is trained on the simulated world: the one room of the core where torch may be."""
