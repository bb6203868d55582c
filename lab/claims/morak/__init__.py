"""Morak's claims."""
