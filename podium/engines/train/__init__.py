"""Train engines: scoring and updating a sharded or lone model on packed tokens."""
