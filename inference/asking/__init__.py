"""Prediction: moments, densities and quantiles at new inputs, and draws of whole functions."""
