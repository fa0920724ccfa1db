"""fedbn."""
