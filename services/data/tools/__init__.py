"""Tools for `environment=tools`, each in its own file."""
