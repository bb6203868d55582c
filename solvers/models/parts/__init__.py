"""What several performance models are made of: look-up on lattices, company on a device, fitted formulas."""
