"""The vocabulary: states, methods, federations, rounds. Needs torch and nothing else."""
