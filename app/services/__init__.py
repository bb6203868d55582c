"""Use cases, one transaction each; the only callers of the store besides start-up code."""
