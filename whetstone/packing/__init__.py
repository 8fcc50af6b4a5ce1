"""Objects of the caller as bytes: what they take along, their identity, and what cannot travel."""
