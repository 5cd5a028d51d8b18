from .leaderboard import write_leaderboard as write_leaderboard
from .page import write_report as write_report
