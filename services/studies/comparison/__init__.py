"""Comparison of runs on one page: curves, settings, evaluations, samples."""
