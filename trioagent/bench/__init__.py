"""Measure how runs stop: how fast, and what they leave behind.

Each adapter runs in a process of its own and is stopped at instants that were drawn
before; what is left is counted from outside. `trioagent bench` is the way in, and
docs/bench.md the method.
"""
