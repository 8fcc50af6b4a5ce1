"""Translation of RL4LMs' YAML files: each module turns a section into options of an experiment and notes."""
