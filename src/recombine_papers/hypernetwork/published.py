"""Numbers printed in Attention as a Hypernetwork (arXiv 2406.05816).

Table A1: mean and standard error over 3 seeds, with learning rate, weight decay and warm-up chosen per method from the grid
of table A3. Fuzzy logic: OOD R² with sequences of 32 tokens and 70 % of the compositions held out. SRAVEN: OOD accuracy of 4
layers trained on 20 million instances.
"""

from __future__ import annotations

from recombine.sweeps import Published

FUZZY_LOGIC_SOURCE = "table A1, fuzzy logic, ± standard error over 3 seeds; hyperparameters chosen per method"
SRAVEN_SOURCE = (
    "table A1, SRAVEN, 4 layers, 20M instances, ± standard error over 3 seeds; hyperparameters chosen per method"
)


def _list(source: str, numbers: dict[str, tuple[float, float]]) -> dict[str, Published]:
    return {name: Published(value=value, error=error, source=source) for name, (value, error) in numbers.items()}


FUZZY_LOGIC = _list(
    FUZZY_LOGIC_SOURCE,
    {
        "softmax": (0.6328, 0.0231),
        "linear": (0.5989, 0.0522),
        "hyla": (0.8113, 0.0777),
        "linear_rms_head": (0.6893, 0.0510),
        "linear_rms_head_nonlinear_value": (0.5691, 0.0425),
        "hyla_no_rms_head": (0.8127, 0.0788),
        "hyla_no_nonlinearity": (0.8454, 0.0532),
        "hyla_no_nonlinearity_no_rms_head": (0.7942, 0.0743),
        "hyla_softmax_no_rms_head": (0.7098, 0.0708),
        "hyla_deep": (0.8765, 0.0454),
        "hyla_softmax": (0.8247, 0.0422),
    },
)
# with a mixture of experts as feed-forward network
FUZZY_LOGIC_MIXTURES = _list(
    FUZZY_LOGIC_SOURCE, {"softmax": (0.6383, 0.0607), "linear": (0.6009, 0.0616), "hyla": (0.8237, 0.0655)}
)
SRAVEN = _list(
    SRAVEN_SOURCE,
    {
        "softmax": (0.5656, 0.0105),
        "linear": (0.5630, 0.0111),
        "hyla": (0.6913, 0.0190),
        "linear_rms_head": (0.5901, 0.0250),
        "linear_rms_head_nonlinear_value": (0.5538, 0.0032),
        "hyla_no_rms_head": (0.6253, 0.0573),
        "hyla_no_nonlinearity": (0.5654, 0.0021),
        "hyla_no_nonlinearity_no_rms_head": (0.5633, 0.0141),
        "hyla_softmax_no_rms_head": (0.3821, 0.0298),
        "hyla_deep": (0.6659, 0.0008),
        "hyla_softmax": (0.6221, 0.0308),
    },
)
SRAVEN_MIXTURES = _list(
    SRAVEN_SOURCE, {"softmax": (0.5768, 0.0131), "linear": (0.6434, 0.043), "hyla": (0.6694, 0.0394)}
)
