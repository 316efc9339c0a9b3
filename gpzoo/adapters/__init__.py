"""Adapters: trained models as models of other libraries. Each module needs the extra of the same name."""
