"""What crosses a process border: records, settings, protocols, errors. No torch, no Ray."""
