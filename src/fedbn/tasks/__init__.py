"""What models learn, by name: one function a task. Adding a file here adds a task.

A task is a value (`fedbn.core.task.Task`) that says which targets are legal, what is minimised and
what is measured. Its loss and its metrics can be exchanged by name (`standard.py`, `metrics.py`),
by `module:callable`, or from Python. A module whose `__all__` is empty registers nothing.
"""
