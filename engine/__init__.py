"""One request's journey and the process border: AsyncLLM, EngineCore, transports, detokenizer."""
