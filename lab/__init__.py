"""The laboratory: rivals, learning, benches and the arena. It imports the product and is imported by nothing."""
