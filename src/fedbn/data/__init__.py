"""The data sets by name: one small file each. Adding a file here adds a data set.

A data set is a function of keyword options that returns a `Federation`.
"""

# Not for choosing: what the configuration of a joining run names.
ELSEWHERE = {"joined": "fedbn.use.joining"}
