"""Recombine: does a network recombine what it learned into compositions it has never seen, and if not, why not?"""

from importlib import metadata

import lazy_loader

__version__ = metadata.version("recombine")
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
