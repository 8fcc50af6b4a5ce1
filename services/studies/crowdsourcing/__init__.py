"""Human judgements of models' texts: pages for raters, and statistics of their answers."""
