"""Questions about plans that do not stand."""
