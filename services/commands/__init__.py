"""Subcommands of `whetstone`, one file each."""
