"""OLTunes' planning of one cycle."""
