"""HetSev's claims."""
