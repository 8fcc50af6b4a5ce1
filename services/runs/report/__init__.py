"""Report of a run on one page."""
