"""Diagnosis of trained models, and checks of data before training: findings in words, and tables of numbers."""
