"""The command line: one sub-command a file; the only place that prints."""
