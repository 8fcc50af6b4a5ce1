"""Stop rules, which end a run before its last iteration."""
