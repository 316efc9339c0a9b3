"""Floor 2: objectives."""
