"""Uses of a trained model: predictions, functions, posteriors, exports, new data, a file."""
