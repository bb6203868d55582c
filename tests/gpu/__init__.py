"""What only real hardware can show, measured by one command: `python -m tests.gpu` (or `make test-gpu`)."""
