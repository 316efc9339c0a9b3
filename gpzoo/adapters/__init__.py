"""Trained models as models of other libraries, a module for each, which needs the extra of its name."""
