from .main import Argument as Argument
from .main import Output as Output
from .main import parse as parse
