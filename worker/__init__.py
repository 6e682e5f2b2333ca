"""Runs the model: runner, input batch, models, layers, sampler, loading."""
