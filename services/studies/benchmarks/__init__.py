"""Benchmarks: their runs, results and tables.

grue.py     RL4LMs' tasks (Ramamurthy et al. 2023)
offline.py  learning from data alone: LoL-RL's tasks (Baheti et al. 2024)
"""
