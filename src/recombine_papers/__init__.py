"""The experiments of four papers on compositional generalisation, made with the public API of `recombine`.

Experiments of other packages and files can have claims, stored results and a place on the card of claims as well:

    from recombine_papers import Lead, PaperExperiment

    class Widths(PaperExperiment):
        name, question, metric = "widths", "Do wider networks recombine modules better?", "r2_pooled"
        claims = (Lead(text="wider is better", source="us", better={"width": 64}, worse={"width": 16}, by=0.1),)

        def records(self, scale): ...

`recombine reproduce FILE.py:Widths` trains its runs, and `recombine reproduce claims FILE.py:Widths` judges its claims.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
