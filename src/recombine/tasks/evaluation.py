"""Old name of parts of `sampling`; about to go."""

from recombine.tasks.sampling import BATCH_SIZE as BATCH_SIZE
from recombine.tasks.sampling import MAX_INSTANCES as MAX_INSTANCES
from recombine.tasks.sampling import evaluation_batches as evaluation_batches
from recombine.tasks.sampling import find_leaks as find_leaks
