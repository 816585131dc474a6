"""The controller: RayPPOTrainer and the pure functions its loop is made of."""
