"""Benches of problems that other papers pose in a form of their own."""
