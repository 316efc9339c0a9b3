"""Models in other libraries' clothes: each module has one library's names, and is imported by itself."""
