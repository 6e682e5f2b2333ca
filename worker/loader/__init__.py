"""From a checkpoint on disk to a model that runs."""
