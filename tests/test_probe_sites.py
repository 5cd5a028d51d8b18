"""Sites are ordered by their layer, also behind the tenth."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from recombine.errors import InputError
from recombine.probe.sites import describe_site, last_site, order_sites
from recombine.recipes.scale import figures as scale_figures


def test_sites_are_ordered_by_layer():
    names = ["hidden.9", "hidden.10", "code", "hidden.0"]
    assert order_sites(names) == ["code", "hidden.0", "hidden.9", "hidden.10"]
    assert last_site(names) == "hidden.10"
    assert describe_site("residual.12") == {"name": "residual.12", "kind": "residual", "layer": 12}
    assert describe_site("encoder") == {"name": "encoder", "kind": "encoder", "layer": None}
    with pytest.raises(InputError, match="no sites"):
        last_site([])


@pytest.mark.usefixtures("unchecked")
def test_the_figure_takes_the_last_layer(monkeypatch):
    """Layer 10 comes after layer 9, although its name does not."""
    sites = {f"hidden.{layer}": {"ood": layer / 10} for layer in range(11)}
    monkeypatch.setattr(scale_figures, "read_decodability", lambda _: {"sites": sites})
    run = SimpleNamespace(
        run=SimpleNamespace(path="run"),
        certificate={"connected": True, "covered": True},
        score=lambda split, metric: 0.5,
    )
    axes = MagicMock()
    scale_figures._draw_decodability(axes, SimpleNamespace(runs=[run]))
    assert axes.plot.call_args.args[:2] == (1.0, 0.5)
