"""InSS' claims."""
