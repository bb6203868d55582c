"""The independent check of a plan, re-derived from the snapshot alone; shares no code with anything that proposes."""
