"""The vocabulary: immutable, typed, unit-suffixed values that every room speaks in. No behaviour beyond checks and
simple derivations.
"""
