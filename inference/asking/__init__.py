"""What a trained model gives: predictions, functions, posteriors, exports, new data, a file."""
