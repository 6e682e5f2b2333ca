"""The doors: command line, HTTP server, offline LLM class, benchmarks."""
