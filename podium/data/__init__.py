"""Prompts: from files and built-in tasks to batches."""
