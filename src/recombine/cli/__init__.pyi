from .main import parse as parse
from .output import Output as Output
