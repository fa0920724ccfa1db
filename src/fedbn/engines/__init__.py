"""Engines: ways to run a plan. Each gives the same state for the same plan."""
