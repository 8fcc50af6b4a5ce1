"""What is measured, always both sides in one run: `make bench`, or `python -m benchmarks NAME …`."""
