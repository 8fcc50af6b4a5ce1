"""Human judgements of models' texts: pages that ask for them, and statistics of the answers."""
