"""The Flower app: fedbn itself."""
