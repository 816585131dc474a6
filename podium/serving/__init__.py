"""A model behind HTTP: OpenAI's and SGLang's requests, answered by the native engine."""
