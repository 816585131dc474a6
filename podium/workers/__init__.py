"""Workers: one process of a role. They hold the models; the controller holds the algorithm."""
