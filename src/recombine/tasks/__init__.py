"""Task families. A task is its frozen dataclass: `FuzzyLogic(num_examples=64).sample("ood", 0)`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
