"""Load: a report over many runs takes time in proportion to them, and leaves no file open."""

import gc
import os
import resource
import time

import pytest

from recombine.report.page import write_report
from report_cases import make_run, make_score

pytestmark = pytest.mark.slow


def count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
def test_a_report_over_two_hundred_runs(tmp_path):
    runs = [make_run(tmp_path / "runs", f"attention {number}", make_score(0.5), num_rows=50) for number in range(200)]
    write_report(runs[:2], tmp_path / "first.html", title="warm", gallery=False)
    before = count_open_files()
    seconds = {}
    for count in (50, 100, 200):
        gc.collect()
        started = time.process_time()
        write_report(runs[:count], tmp_path / f"{count}.html", title="load", gallery=False)
        seconds[count] = time.process_time() - started
        size = (tmp_path / f"{count}.html").stat().st_size
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"report over {count} runs: {seconds[count]:.2f} s of CPU, {size / 1e6:.1f} MB, peak {peak} MB in memory")
    assert count_open_files() == before
    assert seconds[200] < 3 * seconds[100] + 1
