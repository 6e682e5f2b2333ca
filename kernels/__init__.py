"""One file per fused operation: its torch reference and, beside it, its Triton kernel."""
