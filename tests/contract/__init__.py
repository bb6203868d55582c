"""The API against its own description, by schemathesis, all phases, to its end, for tokens of every role."""
