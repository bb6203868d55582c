"""Offline tasks on one node, as OLTunes poses them."""
