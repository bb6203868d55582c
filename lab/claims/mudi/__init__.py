"""Mudi's claims."""
