"""One file per fused operation: the torch reference, and beside it kernels of Triton and of Numba in their folders."""
