"""Floor 4: one HTML page of a trained model."""
