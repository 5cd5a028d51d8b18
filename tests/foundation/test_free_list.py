"""Memory of large tensors is used again, but never while anything still refers to it."""

import gc
import subprocess
import sys
import threading

import pytest
import torch

from recombine.foundation import native
from recombine.training.config import default_run
from recombine.training.trainer import BatchGroups

LARGE = (300, 1000)


@pytest.fixture(autouse=True)
def _own_blocks(monkeypatch):
    monkeypatch.setattr(native, "_free", {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(0,), (3, 4), LARGE, (native.MAX_BLOCK,)])
def test_it_is_an_ordinary_tensor(shape, dtype):
    for _ in range(2):
        tensor = native.empty_block(*shape, dtype=dtype)
        assert (type(tensor), tuple(tensor.shape), tensor.dtype) == (torch.Tensor, shape, dtype)
        assert tensor.is_contiguous()
        assert tensor.device.type == "cpu"
        assert tensor.data_ptr() % 64 == 0, "rounding of matrix products may depend on it"


def test_a_block_is_used_again_only_when_nothing_refers_to_it():
    first = native.empty_block(*LARGE)
    address, view, array = first.data_ptr(), first[3:5].fill_(7), first.numpy()
    del first
    assert native.empty_block(*LARGE).data_ptr() != address
    del array
    assert native.empty_block(*LARGE).data_ptr() != address
    assert (view == 7).all()
    del view
    assert native.empty_block(LARGE[1], LARGE[0]).data_ptr() == address, "of the same size"
    assert native.empty_block(7, *LARGE).data_ptr() != address


def test_small_blocks_are_left_to_the_allocator_and_few_are_kept():
    native.empty_block(8, 8)
    assert not native._free
    held = [native.empty_block(native.MAX_BLOCK, dtype=torch.bool) for _ in range(6)]
    addresses = [tensor.data_ptr() for tensor in held]
    while held:
        held.pop(0)
    kept = [block.data_ptr() for block in native._free.values()]
    assert kept == addresses[-native.MAX_FREE_BYTES // native.MAX_BLOCK :], "the oldest are given back"


def test_a_block_may_return_while_another_is_looked_for():
    """Before Python 3.12, the garbage collector runs in the middle of what creates objects, even in one thread."""

    class Cycle:
        parts: list[object]

    held = [native.empty_block(native.MIN_BLOCK + number, dtype=torch.bool) for number in range(200)]
    kept, before = [], gc.get_threshold()
    del held
    try:
        gc.disable()
        for threshold in range(50, 2000, 100):  # one of them is reached while the 200 blocks are looked through
            gc.set_threshold(threshold)
            block = native.empty_block(*LARGE)
            kept.append([(number, object()) for number in range(3000)])  # none of the tuples in reserve is left
            gc.collect()
            cycle = Cycle()
            cycle.parts = [cycle, block]
            del cycle, block
            gc.enable()
            native.empty_block(*LARGE, 2)
            gc.disable()
    finally:
        gc.set_threshold(*before)
        gc.enable()


def test_threads_never_share_a_block():
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            tensor = native.empty_block(20_000, dtype=torch.int64).fill_(number)
            if not (tensor == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_view_that_outlives_torch_is_released_in_silence():
    program = (
        "import builtins\nfrom recombine.foundation.native import empty_block\n"
        "builtins.kept = empty_block(300, 1000).numpy()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["sequence_teacher", "goal_grid", "preference_grid"])
def test_a_group_of_batches_has_the_memory_of_the_one_before(name):
    run = default_run(name, "tiny")
    batches = BatchGroups(run.task, batch_size=run.training.batch_size)
    addresses = [batches[index * batches.group_size].inputs.data_ptr() for index in range(8)]
    assert len(set(addresses)) <= 3, "columns of the same size take turns"
    kept = batches[0]
    inputs = kept.inputs.clone()
    assert batches[batches.group_size].inputs.data_ptr() != kept.inputs.data_ptr(), "a batch that is still held"
    assert torch.equal(kept.inputs, inputs)
