"""Old name of parts of `base` and `sampling`; about to go."""

from recombine.tasks.base import METRICS as METRICS
from recombine.tasks.base import MIN_VARIANCE as MIN_VARIANCE
from recombine.tasks.base import Metric as Metric
from recombine.tasks.base import Ratio as Ratio
from recombine.tasks.base import measure_r2 as measure_r2
from recombine.tasks.sampling import Batch as Batch
