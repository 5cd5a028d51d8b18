"""The command line: one file per verb, imported when the verb is called. The public names are those of new verbs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
