"""Reproductions: pinned recipes, and a page with published numbers beside ours.

conf/recipe/NAME.yaml ─▶ recipe.py ─▶ plan.py ─▶ checks.py ─▶ running.py (a run for each row and seed)
                                                                  └─▶ results.py ─▶ page.py
conf/recipe/published.csv ─▶ published.py ─────────────────────────────┘
"""
