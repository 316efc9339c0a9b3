"""Floor 2: guides, made of the program that they approximate."""
