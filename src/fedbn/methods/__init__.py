"""The methods by name: one small file each. Adding a file here adds a method."""

from fedbn.methods._spec import parse_method

__all__ = ["parse_method"]
