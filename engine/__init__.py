"""One request's journey and the process border: AsyncLLM, EngineCore, clients, detokenizer."""
