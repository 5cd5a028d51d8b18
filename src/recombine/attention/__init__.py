"""Softmax, linear and hypernetwork attention: the definition, its fast versions, and the layers."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
