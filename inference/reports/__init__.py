"""One HTML page of a trained model."""
