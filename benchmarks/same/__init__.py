"""Whether the program still does what it did: plans, scenarios, views and doors as committed digests."""
