"""Centralized training, the yardstick of the paper's appendix."""

from fedbn.core.method import Method


def centralized() -> Method:
    """Pool all data and train on it as one client, scored on every domain."""
    return Method("centralized", pooled=True)
