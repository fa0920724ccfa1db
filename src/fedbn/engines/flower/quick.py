"""Shorter naps: Flower waits seconds where a loopback or a hospital's network needs milliseconds.

The pauses are constants in Flower's code: 3 s when a node has no message, 0.5 s while one is worked
on, and a second or more when a message's content is not there yet, which it never is at once.
Everything else stays as it is; where a later Flower has no such pause, nothing is changed.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from flwr.supercore import heartbeat
from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode import fleet_http_connection, start_client_internal

_LONGEST_SLEEP = 0.1
_PULLING = {"initial_backoff": 0.02, "backoff_cap": 0.5, "max_tries_per_object": None}
# Seconds between signs of life, the least that Flower's server takes. After two of them a node that
# was killed may come back; before, the server thinks that it is still there.
_HEARTBEAT = 10


def quicken() -> None:
    """Let this process look for messages, and for their content, more often."""
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = getattr(getattr(inflatable_utils, name, None), "__kwdefaults__", None) or {}
        defaults.update({key: value for key, value in _PULLING.items() if key in defaults})
    for module in (fleet_http_connection, heartbeat):
        if hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL"):
            vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = _HEARTBEAT
    if hasattr(start_client_internal, "time"):
        start_client_internal.time = SimpleNamespace(sleep=_nap)


def _nap(seconds: float) -> None:
    time.sleep(min(seconds, _LONGEST_SLEEP))
