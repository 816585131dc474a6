"""Checkpoints: what a run needs to go on, and what others need to use its model."""
