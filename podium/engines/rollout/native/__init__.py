"""Podium's own rollout engine: continuous batching over a paged KV cache."""
