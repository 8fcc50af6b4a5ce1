"""Benchmarks, each of both sides in one run: `make bench`, or `python -m benchmarks NAME …`."""

import os

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # as in services/cluster/ray_variables.py
