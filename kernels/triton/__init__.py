"""Triton kernels for NVIDIA GPUs: one file per fused operation, named after its torch reference in ``kernels``.

Importing a file needs the ``triton`` package. Each launcher allocates nothing that depends on data, never waits for
the device, and has a grid that depends on shapes alone, so that a CUDA graph can capture it. A row's result depends
on that row alone unless the launcher's docstring says otherwise.
"""
