"""The joint optimiser: every knob of the whole fleet in one problem, with a proven gap."""
