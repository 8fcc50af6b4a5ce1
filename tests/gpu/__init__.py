"""Tests that need a GPU: `make gpu` runs them. They compare what a GPU computes with what a CPU does."""
