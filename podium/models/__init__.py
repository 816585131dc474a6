"""Models: Hugging Face folders as modules whose attention takes packed tokens, and value heads."""
