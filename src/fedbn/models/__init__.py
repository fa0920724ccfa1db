"""The models by name: one small file each. Adding a file here adds a model.

A model is a function that is called with those of `classes` and `input_shape` that its signature
names, plus the user's `model.args`.
"""
