"""Terminal output and signals: short numbers, progress of slow steps, Ctrl-C."""
