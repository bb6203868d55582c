"""Speed and memory, shown by programs that print what they saw. Ratios are taken side by side in one run, since
machines are noisy.
"""
