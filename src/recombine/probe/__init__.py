"""Look inside a network: which modules can be read from it, what its latent codes look like, and whether they drive it.

`probe_run` leaves two files in a run directory. `examine` and `examine_activations` return the same for any model on a task
and for a file of activations. What is read of a task, its own `reading()` says.

probe.json
    The keys are those of `recombine.probe.schema.Probe`.

probe.npz
    activations.SITE            (rows, features): the codes of every row that was decoded from, or all sites on request
    labels split composition target modules compositions        columns of these rows (see `observations`); `composition` is
                                a number in `compositions`, which are in words
    sample.activations.SITE     (sampled, features): codes of the rows that are pictured (figure A8)
    sample.labels sample.split sample.composition sample.target sample.modules sample.compositions      their columns
    tsne.SITE                   (sampled, 2)
    key                         the key of probe.json as JSON text (see `cache`)
"""

from recombine.probe.collect import collect
from recombine.probe.decode import decode
from recombine.probe.examination import Examination
from recombine.probe.examine import examine, examine_activations
from recombine.probe.observations import Observations, load_observations
from recombine.probe.runs import NotKeptError, is_probed, probe_run, read_probe

__all__ = [
    "Examination",
    "NotKeptError",
    "Observations",
    "collect",
    "decode",
    "examine",
    "examine_activations",
    "is_probed",
    "load_observations",
    "probe_run",
    "read_probe",
]
