"""Diagnosis of trained models, and of data before a training: findings in words, and tables of numbers."""
