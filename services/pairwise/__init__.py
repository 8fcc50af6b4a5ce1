"""Comparison of texts by a chat model: asked in both orders, counted and tested."""
