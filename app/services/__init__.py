"""Use cases. Each function owns its transaction, writes its audit event in it, and speaks in domain values."""
