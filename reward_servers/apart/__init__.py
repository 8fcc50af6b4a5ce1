"""Unit tests and their program in separate processes, which exchange only plain data."""
