"""Objectives of a training, and densities of data from which GP sites are integrated out."""
