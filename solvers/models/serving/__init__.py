"""From execution to what users see: waiting in batches and queues, and the tokens of LLM services."""
