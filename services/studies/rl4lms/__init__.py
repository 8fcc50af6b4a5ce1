"""Translate RL4LMs' YAML files; each module turns a section into an experiment's options and notes."""
