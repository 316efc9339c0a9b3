"""Guides, made from the program that they approximate."""
