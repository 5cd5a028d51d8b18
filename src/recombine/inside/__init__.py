"""Probes of a trained network: collect, decode, intervene, compare structure, and the verdict."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
