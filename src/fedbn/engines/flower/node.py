"""Flower's SuperNode as a process: carries messages between the server and the site's work."""

from __future__ import annotations

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
    flower_supernode()


if __name__ == "__main__":
    main(sys.argv[1:])
