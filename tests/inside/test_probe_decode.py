"""Decoders on planted truth: what carries modules is read on new compositions, what does not is not."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from recombine.inside.collect import Activations
from recombine.inside.decode import (
    MAX_DEVIATIONS,
    balance_classes,
    decide,
    decode_components,
    fit_logistic_path,
    permute_labels,
    score_presence,
    score_values,
    standardise,
)

PAIRS = np.array(list(itertools.combinations(range(8), 2)))
HELD_OUT = np.arange(len(PAIRS)) % 3 == 1


def plant(kind: str, *, num_rows: int = 60, seed: int = 0) -> Activations:
    """Rows of 28 pairs of 8 modules; codes carry the modules, only the composition's identity, or nothing."""
    generator = np.random.default_rng(seed)
    composition = np.repeat(np.arange(len(PAIRS)), num_rows)
    labels = (PAIRS[composition][:, :, None] == np.arange(8)).any(axis=1).astype(np.float32)
    noise = 0.1 * generator.normal(size=(len(composition), 32))
    signal = {
        "modules": labels @ generator.normal(size=(8, 32)),
        "compositions": generator.normal(size=(len(PAIRS), 32))[composition],
        "nothing": np.zeros_like(noise),
    }[kind]
    split = np.where(HELD_OUT[composition], "ood", np.where(np.arange(len(composition)) % 2, "id", "fit"))
    return Activations(
        by_site={"codes.0": (signal + noise).astype(np.float32)},
        labels=labels,
        split=split,
        composition=composition,
        target=generator.random(len(composition)),
        modules=tuple("abcdefgh"),
        compositions=tuple(map(str, PAIRS)),
    )


def test_codes_that_carry_modules_are_read_on_new_compositions():
    found = decode_components(plant("modules"))["codes.0"]
    for split in ("id", "ood"):
        assert min(found[split][metric] for metric in ("f1", "accuracy", "auc", "exact", "r2")) > 0.98
    assert found["ood"]["f1"] > 0.99
    assert found["ood"]["selectivity"]["f1"] > 0.5
    assert set(found["modules"]["ood"]) <= set("abcdefgh")
    assert min(each["f1"] for each in found["modules"]["ood"].values()) > 0.98


def test_codes_that_carry_nothing_are_at_the_majority_baseline():
    found = decode_components(plant("nothing"))["codes.0"]
    for split in ("id", "ood"):
        assert abs(found[split]["accuracy"] - found[split]["majority"]["accuracy"]) < 0.05
        assert abs(found[split]["auc"] - 0.5) < 0.05
        assert found[split]["f1"] < found[split]["majority"]["f1"] + 0.02
        assert abs(found[split]["selectivity"]["f1"]) < 0.15
        assert found[split]["r2"] < 0.02


def test_codes_that_only_distinguish_compositions_have_no_selectivity():
    """Read in distribution, not on new compositions; and the control reads them as well, so selectivity is nil."""
    found = decode_components(plant("compositions"))["codes.0"]
    assert found["id"]["f1"] > 0.9
    assert found["id"]["control"]["f1"] > 0.9
    assert abs(found["id"]["selectivity"]["f1"]) < 0.05
    assert found["ood"]["f1"] < 0.5
    assert found["ood"]["exact"] < 0.2
    assert found["cross_validated"]["f1"] < 0.5


def test_nothing_but_the_fitting_rows_is_learned_from():
    planted = plant("modules")
    labels = planted.labels.copy()
    others = planted.rows("id", "ood")
    labels[others] = np.roll(labels[others], 1, axis=1)
    activations = planted.by_site["codes.0"].copy()
    activations[planted.rows("ood")] *= 100
    before = decode_components(planted)["codes.0"]
    after = decode_components(replace(planted, labels=labels, by_site={"codes.0": activations}))["codes.0"]
    assert before["strength"] == after["strength"]
    assert before["cross_validated"] == after["cross_validated"]
    assert after["id"]["f1"] < 0.4


def test_continuous_latents_are_read_by_ridge():
    planted = plant("modules")
    generator = np.random.default_rng(1)
    latents = planted.labels * generator.uniform(0.5, 1, size=planted.labels.shape).astype(np.float32)
    codes = (latents @ generator.normal(size=(8, 32))).astype(np.float32)
    found = decode_components(replace(planted, labels=latents, by_site={"x": codes}))["x"]
    assert found["ood"]["r2"] > 0.99
    assert found["ood"]["majority"]["r2"] < 0.01
    assert "f1" not in found["ood"]


def test_logistic_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    x = (generator.normal(size=(400, 12)) @ generator.normal(size=(12, 12))).astype(np.float32)
    y = (x[:, :3] + generator.normal(size=(400, 3)) > 1).astype(np.float32)
    for strength in (1e-3, 0.1, 10.0):
        z = decide(x, next(fit_logistic_path(x, y, [strength])))
        for module in range(3):
            expected = LogisticRegression(C=strength, class_weight="balanced", tol=1e-8, max_iter=5_000)
            expected.fit(x, y[:, module])
            np.testing.assert_allclose(z[:, module], expected.decision_function(x), rtol=0.02, atol=0.02)


def test_a_rare_module_is_not_left_unsaid():
    """One row in six has the module, and the code says so faintly: half of those with it are found all the same."""
    generator = np.random.default_rng(0)
    y = (np.arange(3_000) % 6 == 0).astype(np.float32)[:, None]
    x = (y + 2 * generator.normal(size=y.shape)).astype(np.float32)
    said = decide(x, next(fit_logistic_path(x, y, [1.0]))) > 0
    assert said[y > 0.5].mean() > 0.5
    np.testing.assert_allclose(balance_classes(y).mean(), 1, rtol=1e-5)
    np.testing.assert_allclose(balance_classes(y)[y > 0.5].sum(), balance_classes(y)[y < 0.5].sum(), rtol=1e-5)


def test_threads_change_nothing():
    planted = plant("modules")
    planted = replace(planted, by_site={f"codes.{i}": planted.by_site["codes.0"] + i for i in range(3)})
    threads = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(decode_components(planted))
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_scores_by_hand():
    truth = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=np.float32)
    z = np.array([[1, -1], [-1, -2], [-1, 2], [1, 2]], dtype=np.float32)
    scores = score_presence(z, truth)
    assert scores["accuracy"] == pytest.approx((0.5 + 1) / 2)
    assert scores["f1"] == pytest.approx((0.5 + 1) / 2)
    assert scores["auc"] == pytest.approx((0.5 + 1) / 2)
    assert scores["exact"] == 1  # the higher of the two is right in every row
    assert score_values(truth, truth) == {"r2": 1}
    assert score_values(np.full_like(truth, 0.5), truth) == {"r2": 0}


def test_the_control_permutes_labels_between_kinds_of_rows():
    planted = plant("modules")
    dealt = permute_labels(planted, 0)
    for composition in range(len(PAIRS)):
        assert len(np.unique(dealt[planted.composition == composition], axis=0)) == 1
    for rows in (planted.rows("fit", "id"), planted.rows("ood")):
        np.testing.assert_array_equal(dealt[rows].sum(axis=0), planted.labels[rows].sum(axis=0))
    assert (dealt != planted.labels).any(axis=1).mean() > 0.8


def test_features_are_standardised_on_the_fitting_side():
    values = np.array([[0, 5, 1], [2, 5, 3], [100, 7, 5]], dtype=np.float32)
    np.testing.assert_allclose(standardise(values, np.array([0, 1])), [[-1, 0, -1], [1, 0, 1], [MAX_DEVIATIONS, 0, 3]])


def test_a_module_that_never_varies_is_left_out():
    planted = plant("modules")
    labels = planted.labels.copy()
    labels[:, 0] = 0
    found = decode_components(replace(planted, labels=labels))["codes.0"]
    assert "a" not in found["modules"]["ood"]
    assert found["ood"]["f1"] > 0.99


def test_too_few_compositions_to_leave_any_out():
    planted = plant("modules")
    found = decode_components(replace(planted, composition=np.zeros_like(planted.composition)))["codes.0"]
    assert found["cross_validated"] == {}
    assert found["id"]["f1"] > 0.9
    without_ood = replace(planted, split=np.where(planted.split == "ood", "id", planted.split))
    assert "ood" not in decode_components(without_ood)["codes.0"]
