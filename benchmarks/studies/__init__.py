"""Studies that answered one question each; run them at releases, or when the question returns."""
