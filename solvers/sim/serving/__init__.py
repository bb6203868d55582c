"""How requests wait and are served."""
