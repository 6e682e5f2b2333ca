"""The layers that models are built from, each knowing how its checkpoint tensors map and are cut."""
