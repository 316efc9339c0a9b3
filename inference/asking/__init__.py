"""What can be asked of a trained model? Predictions, functions, posteriors, exports, new data, a file."""
