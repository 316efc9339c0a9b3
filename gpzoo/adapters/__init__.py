"""Adapters: trained models as models of other libraries; each module needs the extra of its name."""
