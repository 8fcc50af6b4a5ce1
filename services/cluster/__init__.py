"""Ray clusters, joined or started, and their jobs."""
