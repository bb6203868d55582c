"""Devices that behave like GPUs under MPS without being any: the back end of the demo, the tests and the testbed."""
