"""Multi-turn episodes: environments, the loop that runs them, search and tools."""
