"""Engines: what computes with a model. `train` updates weights, `rollout` samples tokens."""
