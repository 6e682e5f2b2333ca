"""Benchmarks: throughput, latency, a load generator for any server, the waterfall of a start, the engine's own cost."""
