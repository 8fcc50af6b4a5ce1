"""Benchmarks: which runs they are, what these found, how that is shown.

grue.py     RL4LMs' tasks (Ramamurthy et al. 2023)
offline.py  learning from data alone: LoL-RL's tasks (Baheti et al. 2024)
"""
