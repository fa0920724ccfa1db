"""The command line: one sub-command a file; the only place that prints."""

import warnings

with warnings.catch_warnings():  # typer's use of click is no reason to end under PYTHONWARNINGS
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer  # noqa: F401 - once imported, it does not warn again
