"""Settings of a run: YAML and overrides, typed and checked."""
