from __future__ import annotations

from command_fixtures import _run, finished, sites

__all__ = ["_run", "finished", "sites"]
