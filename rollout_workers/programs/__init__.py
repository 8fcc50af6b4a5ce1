"""Programs as environments: one process for each lease, whose calls come through the gateway."""
