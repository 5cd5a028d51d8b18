"""Settings have the types that their fields declare, and training has numbers that make sense, before anything is written."""

import math
from dataclasses import dataclass

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError, Settings, settings_as_dict, settings_from_dict
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import RunConfig, TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    sizes: tuple[int, ...] = (1, 2)
    rate: float | None = None
    note: str = ""
    flag: bool = False


@pytest.mark.parametrize(
    ("owner", "values", "message"),
    [
        (FuzzyLogic, {"num_examples": 16.5}, "num_examples is 16.5: expected a whole number"),
        (FuzzyLogic, {"num_examples": "16"}, "num_examples is '16': expected a whole number"),
        (FuzzyLogic, {"num_examples": True}, "num_examples is True: expected a whole number"),
        (FuzzyLogic, {"seed": None}, "seed is None: expected a whole number"),
        (FuzzyLogic, {"held_out": math.nan}, "held_out is nan: expected a finite number"),
        (Hyperteacher, {"support": "all"}, "unknown support 'all': expected one of random, equal"),
        (TransformerConfig, {"causal": 1}, "causal is 1: expected true or false"),
        (TransformerConfig, {"num_layers": 2.0}, "num_layers is 2.0: expected a whole number"),
        (TrainingConfig, {"precision": 3}, "unknown precision 3: expected one of float32, bf16"),
        (TrainingConfig, {"model_seed": "7"}, "model_seed is '7': expected a whole number or nothing"),
        (Example, {"sizes": (1, 2.5)}, "expected several values, each a whole number"),
        (Example, {"note": 3}, "note is 3: expected text"),
    ],
)
def test_values_of_the_wrong_type(owner, values, message, unchecked):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        owner(**values)


def test_whole_numbers_are_fine_for_floats_and_make_the_same_run(unchecked):
    configs = [
        RunConfig(task=FuzzyLogic(), model=TransformerConfig(), training=TrainingConfig(gradient_clip=clip))
        for clip in (1, 1.0)
    ]
    assert configs[0].identity == configs[1].identity
    assert isinstance(configs[0].as_dict()["training"]["gradient_clip"], float)
    assert settings_from_dict(Example, {"sizes": [3, 4], "rate": 2}) == Example(sizes=(3, 4), rate=2)
    assert settings_as_dict(Example(rate=2))["rate"] == 2.0
    with pytest.raises(InputError, match="unknown field of Example 'size'"):
        settings_from_dict(Example, {"size": 1})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--gradient-clip", "-1"], "gradient_clip is -1.0: expected a positive number"),
        (["--gradient-clip", "inf"], "gradient_clip is inf: expected a finite number or nothing"),
        (["--final-fraction", "-5"], "final_fraction is -5.0: expected a number from 0 to 1"),
        (["--weight-decay", "nan"], "weight_decay is nan: expected a finite number"),
        (["--beta2", "1"], "beta2 is 1.0: expected a number from 0 to below 1"),
        (["--learning-rate", "0"], "learning_rate is 0.0: expected a positive number"),
        (["--steps", "-3"], "steps is -3: expected a whole number of at least 1"),
        (["--batch-size", "0"], "batch_size is 0: expected a whole number of at least 1"),
        (["--seed", "-1"], "the seed is -1: expected a whole number from 0"),
        (["--evaluation-instances", "0"], "evaluation_instances is 0: expected a whole number of at least 1"),
    ],
    ids=" ".join,
)
def test_training_with_nonsense_is_refused_before_anything_is_written(
    flags, message, tmp_path, monkeypatch, capsys, unchecked
):
    monkeypatch.chdir(tmp_path)
    assert run_verb(["train", "fuzzy-logic", "--scale", "tiny", "--steps", "2", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
