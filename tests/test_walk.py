"""The walk through the source: the files whose functions run between `recombine train sraven` and `result.json`."""

import subprocess
import sys
from pathlib import Path

import recombine

MOST_FILES = 25
TRACE = """
import sys, threading
from pathlib import Path
import recombine.cli.main

root, functions = str(Path(recombine.__file__).parent), 0x2  # CO_NEWLOCALS: neither a module nor a class body
walked, importing = set(), 0

def trace(frame, event, argument):
    global importing
    code = frame.f_code
    if code.co_name == "<module>":  # what an import executes is not on the way
        importing += {"call": 1, "return": -1}.get(event, 0)
    if event == "call" and not importing and code.co_flags & functions and code.co_filename.startswith(root):
        walked.add(code.co_filename)

threading.setprofile(trace)
sys.setprofile(trace)
try:
    recombine.cli.main.run(sys.argv[1:])
finally:
    sys.setprofile(None)
    print(*sorted(walked), sep="\\n", file=sys.stderr)
"""


def test_a_reader_opens_few_files_from_the_command_to_the_result(tmp_path):
    command = f"train sraven --scale tiny --steps 20 --evaluation-instances 64 --quiet --out {tmp_path}"
    done = subprocess.run([sys.executable, "-c", TRACE, *command.split()], check=True, capture_output=True, text=True)
    assert list(tmp_path.glob("*/result.json"))
    walked = [
        Path(line).relative_to(Path(recombine.__file__).parent)
        for line in done.stderr.splitlines()
        if line.endswith(".py")
    ]
    assert {"cli/train.py", "training/run.py", "training/trainer.py", "attention/layer.py"} <= set(map(str, walked))
    assert len(walked) <= MOST_FILES, f"the walk is {len(walked)} files long: {', '.join(map(str, walked))}"
