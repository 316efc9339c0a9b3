"""Programs: what happens in a run of one, and how its sites follow rows of data."""
