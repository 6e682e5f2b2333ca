"""From what the user names to a folder with ``config.json``, weights and tokenizer. No torch, no transformers here."""

from .resolver import resolve_model, resolve_tokenizer

__all__ = ["resolve_model", "resolve_tokenizer"]
