"""Fleets rented anew every step."""
