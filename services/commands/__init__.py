"""Subcommands of `whetstone`: each parses its arguments, calls a package, prints the result."""
