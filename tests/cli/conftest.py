from __future__ import annotations

from command_fixtures import _run, finished, processes, sites

__all__ = ["_run", "finished", "processes", "sites"]
