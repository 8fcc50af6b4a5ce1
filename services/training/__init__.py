"""Everything that changes weights, with the checks and the plan before it."""
