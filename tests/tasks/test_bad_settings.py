"""Settings that a task cannot have are refused in one line that names the value and what was expected."""

import pytest

from recombine.foundation.errors import InputError
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.grids.goal import GoalGrid
from recombine.tasks.grids.preference import PreferenceGrid
from recombine.tasks.language.task import Language
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.modular.in_context import InContext
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.tasks.sraven.task import SRaven

BAD_SETTINGS = {
    FuzzyLogic: [
        ({"num_terms": 13}, "num_terms is 13: expected at most 12"),
        ({"num_examples": 1}, "num_examples is 1: expected at least 2"),
        ({"held_out": 1.0}, "held-out fraction is 1.0"),
        ({"held_out": 0.95}, "expected at least 6"),
    ],
    GoalGrid: [
        ({"grid_size": 8}, "grid_size is 8: expected an odd number"),
        ({"num_mazes": 10}, "num_mazes is 10: expected 1 to 9"),
        ({"num_distractors": 0}, "num_distractors is 0: expected 1 to 8"),
        ({"encoding": "poem"}, "unknown encoding 'poem': expected one of instruction, parts, arbitrary"),
        ({"held_out": 0.999}, "held-out fraction is 0.999"),
    ],
    Hyperteacher: [
        ({"num_modules": 0}, "num_modules is 0"),
        ({"num_active": 17}, "num_active is 17 of 16 modules"),
        ({"num_samples": 1}, "num_samples is 1"),
        ({"train_samples": 0}, "train_samples is 0: expected a whole number of at least 1"),
        ({"num_extra": -1}, "num_extra is -1"),
        ({"encoding": "few_shot", "num_shots": 0}, "num_shots is 0: expected a whole number of at least 1"),
        ({"encoding": "tokens", "latents": "continuous"}, "tokens of continuous latents"),
        ({"encoding": "invertible", "num_modules": 15}, "invertible of 15 modules: expected an even number"),
        ({"num_modules": 40, "num_active": 7}, "40 modules, 1 to 8 at once, make 760,098 compositions or more"),
        ({"held_out": 0.999}, "held-out fraction is 0.999"),
        ({"encoding": "morse"}, "unknown encoding 'morse': expected one of identity, orthogonal"),
    ],
    InContext: [
        ({"num_active": 7}, "num_active is 7: expected at most num_modules = 6"),
        ({"num_active": 1}, "does not close: expected at least 2 modules"),
        ({"num_modules": 7, "num_active": 3}, "a ring of 7 modules in compositions of 3 does not close"),
        ({"num_modules": 3}, "holds nothing out: expected more modules"),
        ({"num_modules": 5, "support": "disconnected"}, "num_modules is 5: expected an even number of at least 4"),
        ({"num_active": 4, "support": "disconnected"}, "num_modules is 6: expected an even number of at least 8"),
        ({"num_modules": 40, "num_active": 3}, "make 9880 compositions: expected at most 1000"),
        ({"support": "custom"}, "expected combinations for 'custom' and for no other support"),
        ({"combinations": "0-1"}, "expected combinations for 'custom' and for no other support"),
        ({"support": "custom", "combinations": "0-6"}, "composition '0-6': expected 2 different modules of 0 to 5"),
        ({"support": "custom", "combinations": "0-a"}, "composition '0-a': expected 2 different modules"),
        ({"support": "custom", "combinations": "0-1 1-0"}, "composition '1-0' occurs twice"),
        ({"support": "custom", "combinations": "0-1 2-3"}, "leave out module 4"),
        ({"num_examples": 0}, "num_examples is 0"),
        ({"support": "star"}, "unknown support 'star': expected one of connected, disconnected, custom"),
    ],
    Language: [
        ({"context_length": 60}, "context_length is 60: expected at least 4 num_pairs = 64"),
        ({"num_pairs": 65, "context_length": 512}, "num_pairs is 65: expected at most 64"),
        ({"held_out_documents": 0.0}, r"held_out_documents is 0\.0: expected between 0 and 1"),
        ({"grammar_fraction": -0.1}, r"grammar_fraction is -0\.1: expected a number from 0 to 1"),
        ({"grammar_fraction": 0.6, "recall_fraction": 0.6}, r"recall_fraction is 1\.2: expected at most 1"),
        ({"text": ("a",), "dataset": "b"}, "text and dataset are both given: expected one of them"),
    ],
    PreferenceGrid: [
        ({"num_active": 17}, "num_active is 17 of 16 modules"),
        ({"num_objects": 11}, "num_objects is 11: expected at most 10"),
        ({"discount": 1.0}, "discount is 1.0: expected a number strictly between 0 and 1"),
        ({"expert": "greedy"}, "unknown expert 'greedy': expected one of remaining_steps, published"),
        ({"encoding": "few_shot"}, "unknown encoding 'few_shot': expected one of identity"),
        ({"encoding": "invertible", "num_modules": 7}, "expected an even number"),
        ({"encoding": "tokens", "latents": "continuous"}, "expected discrete or k_hot"),
        ({"num_modules": 40, "num_active": 7}, "make 760,098 compositions or more: expected at most 200,000"),
    ],
    SequenceTeacher: [
        ({"teacher": "gru"}, "unknown teacher 'gru': expected one of deep_set, attention, ssm, rnn, product"),
        ({"min_length": 0}, "min_length is 0: expected a whole number of at least 1"),
        ({"min_length": 11}, "min_length is 11: expected at most max_length = 10"),
        ({"longest": 10}, "longest is 10: expected more than max_length = 10"),
        ({"num_sequences": 0}, "num_sequences is 0"),
        ({"support": 0.0}, "support is 0.0: expected a width above 0"),
        ({"chain_of_thought": -1.0}, "chain_of_thought is -1.0: expected a weight of at least 0"),
    ],
    SRaven: [
        ({"num_features": 1}, "held-out fraction is 0.25, which leaves 6 training compositions: expected at least 8"),
        ({"num_values": 2}, "num_values is 2: expected a whole number of at least 3"),
        ({"num_values": 4, "grid_size": 5}, "num_values is 4: expected a whole number of at least 5"),
        ({"grid_size": 1}, "grid size is 1: expected at least 2"),
        ({"num_values": 1000}, "num_values is 1000 at grid size 3, which gives .* expected at most 2097152"),
        ({"held_out": 0.997}, "held-out fraction is 0.997"),
    ],
}


@pytest.mark.parametrize(
    ("task", "settings", "message"), [(task, *case) for task, cases in BAD_SETTINGS.items() for case in cases]
)
def test_bad_settings(task, settings, message, unchecked):
    with pytest.raises(InputError, match=message):
        task(**settings)
