from .hyla import HypernetworkAttention as HypernetworkAttention
from .layer import Attention as Attention
from .layer import AttentionName as AttentionName
from .view import HypernetworkView as HypernetworkView
from .view import hypernetwork_view as hypernetwork_view
