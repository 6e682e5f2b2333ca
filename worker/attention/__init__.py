"""Attention over the paged KV cache: the interface, its implementations, and the choice between them."""
