"""Flower's SuperNode as a process: carries messages between the server and the site's work."""

from __future__ import annotations

import os
import sys

from flwr.supernode.cli.flower_supernode import flower_supernode

from fedbn.engines.flower.processes import follow
from fedbn.engines.flower.quick import quicken


def main(arguments: list[str]) -> None:
    """Run the node until ended, or until the parent is gone."""
    *flags, parent = arguments
    follow(int(parent))
    quicken()
    sys.argv = ["flower-supernode", *flags]
    code: object = 1
    try:
        flower_supernode()
        code = 0
    except SystemExit as error:
        code = error.code
    finally:
        # Threads of Flower may still wait for a network that is gone; the process must end, so
        # that a new one can take over.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
