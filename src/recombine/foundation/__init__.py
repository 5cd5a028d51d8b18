"""Errors, files, settings, tables: what every other room uses and a package outside may use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
