"""RL4LMs' YAML files, read: one file a section, each from a section to options of an experiment and notes."""
