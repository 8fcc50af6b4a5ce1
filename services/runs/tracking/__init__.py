"""Outputs of a run in progress: MLflow, Prometheus, console and log."""
