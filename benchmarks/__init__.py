"""Benchmarks: one command each; results are appended to a CSV under `results/bench/` with machine and versions."""
