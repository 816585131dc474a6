"""From data files and built-in tasks to batches of prompts: the dataset, its prompts, its sampler, its tasks."""
