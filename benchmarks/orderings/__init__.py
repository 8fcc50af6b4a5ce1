"""Orderings that a CPU can show: registered before they are run, eight seeds an arm.

registered.yaml ─▶ registry.py ─▶ arms.py (a run for each arm and seed) ─▶ claims.py (tests) ─▶ page.py
"""
