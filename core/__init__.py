"""Vocabulary and decisions: configuration, requests, the scheduler and the KV cache. No torch, no sockets."""
