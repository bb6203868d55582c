"""The whole product on one real GPU, as its user uses it: `python -m tests.gpu.whole`."""
