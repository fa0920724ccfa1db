"""Measured ratios: ours against a plain loop, interleaved in one run. Start with scripts/bench."""
