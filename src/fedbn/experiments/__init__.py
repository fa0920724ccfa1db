"""From a TOML file to runs: the configuration, checked; one plan a method, seed and setting."""
