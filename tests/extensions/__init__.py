"""What users add to gpzoo from a package of their own: one module for each kind of thing, and none of gpzoo edited."""
