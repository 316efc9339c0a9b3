"""Training: the compiled loop of updates, its minibatches, checkpoints and explanations of failures."""
