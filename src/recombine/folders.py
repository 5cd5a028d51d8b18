"""Names of files in a folder of runs that several parts read, also those that do without torch."""

RESULT = "result.json"  # in a run directory that is finished
METRICS = "metrics.jsonl"  # in a run directory, written during training
FAILURE = "failure.json"  # in a run directory whose training failed in a sweep
RUNNING = ".running"  # folder next to the run directories; workers touch a file in it for each run that they train
