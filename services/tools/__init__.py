"""Tools for `environment=tools`, one file each."""
