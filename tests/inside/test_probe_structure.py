"""Numbers beside pictures: high for codes in clusters, at chance for noise."""

from dataclasses import replace

import numpy as np
import pytest

from recombine.foundation.errors import InputError
from recombine.inside.result import describe_site, last_site
from recombine.inside.structure import bin_targets, embed, measure_similarity, measure_structure, sample_rows
from test_probe_decode import plant


def clusters(spread: float):
    planted = plant("nothing")
    number = np.arange(len(planted.split)) % 4
    generator = np.random.default_rng(0)
    codes = np.eye(4)[number] + spread * generator.normal(size=(len(number), 4))
    return replace(
        planted,
        by_site={"codes.0": codes.astype(np.float32)},
        labels=np.eye(4, dtype=np.float32)[number],
        modules=("a", "b", "c", "d"),
        target=number.astype(float),
    )


def test_clusters_are_pure_and_noise_is_at_chance():
    tight, loose = clusters(0.01), clusters(100.0)
    rows = sample_rows(tight, 400)
    found = measure_structure(tight, "codes.0", rows)
    for colour in ("target", "module"):
        assert found[colour]["purity"] == 1
        assert found[colour]["chance"] == pytest.approx(0.25, abs=0.07)
        assert found[colour]["silhouette"] > 0.9
    noise = measure_structure(loose, "codes.0", rows)["module"]
    assert noise["purity"] == pytest.approx(noise["chance"], abs=0.04)
    assert abs(noise["silhouette"]) < 0.05


def test_several_modules_a_row():
    carried, nothing = plant("modules"), plant("nothing")
    rows = sample_rows(carried, 400)
    found, noise = (measure_structure(each, "codes.0", rows)["module"] for each in (carried, nothing))
    assert found["purity"] > 0.99
    assert noise["purity"] == pytest.approx(noise["chance"], abs=0.03)
    assert found["silhouette"] > noise["silhouette"] + 0.1


def test_targets_are_binned_only_if_there_are_many():
    assert bin_targets(np.array([3, 5, 3])).tolist() == [0, 1, 0]
    assert np.bincount(bin_targets(np.linspace(0, 1, 800))).tolist() == [100] * 8


def test_similarity_is_the_cosine_of_mean_codes():
    planted = clusters(0.0)
    found = measure_similarity(planted, "codes.0")
    assert found["modules"] == ["a", "b", "c", "d"]
    np.testing.assert_allclose(found["cosine"], np.eye(4), atol=1e-6)
    np.testing.assert_allclose(np.array(found["centred"])[~np.eye(4, dtype=bool)], -1 / 3, atol=1e-2)


def test_tsne_keeps_clusters_apart():
    planted = clusters(0.01)
    rows = sample_rows(planted, 120)
    points = embed(planted.by_site["codes.0"][rows])
    assert points.shape == (120, 2)
    number = planted.labels[rows].argmax(axis=1)
    centres = np.stack([points[number == each].mean(axis=0) for each in range(4)])
    nearest = np.linalg.norm(points[:, None] - centres, axis=-1).argmin(axis=1)
    assert (nearest == number).all()
    np.testing.assert_array_equal(points, embed(planted.by_site["codes.0"][rows]))


def test_codes_that_do_not_vary_have_a_picture_too():
    assert not embed(np.ones((20, 3), dtype=np.float32)).any()


def test_sites_are_ordered_by_layer():
    names = ["hidden.9", "hidden.10", "code", "hidden.0"]
    assert last_site(names) == "hidden.10"
    assert dict(describe_site("residual.12")) == {"name": "residual.12", "kind": "residual", "layer": 12}
    assert dict(describe_site("encoder")) == {"name": "encoder", "kind": "encoder", "layer": None}
    with pytest.raises(InputError, match="no sites"):
        last_site([])
