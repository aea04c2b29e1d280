"""Naive readings of the scheduling rules, written apart from the package: oracles for the tests."""
