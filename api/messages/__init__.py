"""Anthropic's Messages API, as a translation of the same events that OpenAI's dialects come from."""
