"""Guides, made of the program that they approximate."""
