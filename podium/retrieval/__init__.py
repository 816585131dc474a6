"""Retrieval: a corpus, an index over it, a server in front of it, a client that survives its faults."""
