"""What a program is, what happens in a run of it, and how its sites follow rows of data."""
