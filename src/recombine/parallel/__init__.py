"""One training on several processes: who they are, what they tell each other, and how a model is spread over them."""

from recombine.parallel.group import ALONE, Group, LostProcessError
from recombine.parallel.join import is_follower, join_group, leave_group, local_rank, num_processes
from recombine.parallel.spread import Spread, gather, local_part, shard_like, spread

__all__ = [
    "ALONE",
    "Group",
    "LostProcessError",
    "Spread",
    "gather",
    "is_follower",
    "join_group",
    "leave_group",
    "local_part",
    "local_rank",
    "num_processes",
    "shard_like",
    "spread",
]
