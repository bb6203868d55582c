"""OLTunes' claims."""
