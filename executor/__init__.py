"""Places workers: in this process, in many processes, or simulated."""
