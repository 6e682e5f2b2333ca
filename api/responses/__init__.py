"""OpenAI's Responses API: items in, items out, and a bounded store of answers to go on from."""
