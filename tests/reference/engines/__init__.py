"""Naive readings of how real engines schedule, one module an engine, written from the rules in docs and papers alone.

Each has `run(settings, requests)` and gives one dict a turn, see `common.new_turn`. A turn in which nothing happened is
left out: whether a clock that waits takes idle turns or jumps over them says nothing about the engine's rules.
"""
