"""The data sets by name: one small file each. Adding a file here adds a data set.

A data set is a function of keyword options that returns a `Federation`.
"""
