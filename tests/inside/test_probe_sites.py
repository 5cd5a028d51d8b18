"""Sites are ordered by their layer, also behind the tenth."""

import pytest

from recombine.foundation.errors import InputError
from recombine.inside.result import describe_site, last_site


def test_sites_are_ordered_by_layer():
    names = ["hidden.9", "hidden.10", "code", "hidden.0"]
    assert last_site(names) == "hidden.10"
    assert dict(describe_site("residual.12")) == {"name": "residual.12", "kind": "residual", "layer": 12}
    assert dict(describe_site("encoder")) == {"name": "encoder", "kind": "encoder", "layer": None}
    with pytest.raises(InputError, match="no sites"):
        last_site([])
