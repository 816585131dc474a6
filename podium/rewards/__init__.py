"""Rewards: from a response's text to a score."""
