"""Benchmarks: throughput, latency, a load generator for any server, and the waterfall of a start."""
