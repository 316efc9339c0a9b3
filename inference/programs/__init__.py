"""Programs: what happens in a run, and how sites follow rows of data."""
