"""What users add to gpzoo from their own package: one module to copy for each kind of thing, and no edit of gpzoo."""
