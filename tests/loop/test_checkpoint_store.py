"""A checkpoint is whole or not there, whatever moment the process dies at."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rledger.errors import CheckpointError
from rledger.loop.checkpoint import CheckpointStore


def _writer(content: bytes):
    def write(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(content)
        (folder / "part").mkdir()
        (folder / "part" / "more.bin").write_bytes(content[::-1])

    return write


# Saves step 2 beside step 1 and dies at the k-th file operation; prints how many there were.
_VICTIM = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from rledger.loop.checkpoint import CheckpointStore

    folder, last = Path(sys.argv[1]), int(sys.argv[2])
    store = CheckpointStore(folder, keep=1)
    def write(target):
        (target / "weights.bin").write_bytes(b"two" * 1000)
        (target / "part").mkdir()
        (target / "part" / "more.bin").write_bytes(b"owt" * 1000)
    seen = 0
    WATCHED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
    def hook(event, arguments):
        global seen
        if event in WATCHED and str(folder) in str(arguments[0]):
            seen += 1
            if seen == last:
                os._exit(9)
    sys.addaudithook(hook)
    store.save(2, write)
    print(seen)
    """
)


def test_killed_at_any_file_operation_the_old_or_the_new_checkpoint_loads(tmp_path: Path) -> None:
    kill_at = 0
    survived: list[int] = []
    while True:
        kill_at += 1
        folder = tmp_path / str(kill_at)
        CheckpointStore(folder, keep=1).save(1, _writer(b"one" * 1000))
        done = subprocess.run(
            [sys.executable, "-c", _VICTIM, str(folder), str(kill_at)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        store = CheckpointStore(folder, keep=1)
        store.remove_unfinished()
        latest = store.latest()
        assert latest is not None
        content = (latest.folder / "weights.bin").read_bytes()
        assert content == {1: b"one", 2: b"two"}[latest.step] * 1000
        assert (latest.folder / "part" / "more.bin").read_bytes() == content[::-1]
        assert not list(folder.glob("writing-*"))
        if done.returncode == 0:
            break
        assert done.returncode == 9, done.stderr
        survived.append(latest.step)
    assert survived == sorted(survived)  # once the new one stands, later kills do not take it back
    assert {1, 2} == set(survived)
    assert len(survived) > 10


def test_a_full_disk_is_reported_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, _writer(b"one"))

    def full(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 2 .*No space left.*step 1 is whole"):
        store.save(2, full)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_an_altered_file_is_refused_by_name(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, _writer(b"one"))
    (tmp_path / "step-00000001" / "weights.bin").write_bytes(b"two")
    with pytest.raises(CheckpointError, match=r"weights\.bin differs"):
        store.latest()
    (tmp_path / "step-00000001" / "weights.bin").unlink()
    with pytest.raises(CheckpointError, match=r"weights\.bin is missing"):
        store.latest()


def test_a_checkpoint_is_never_written_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(3, _writer(b"one"))
    with pytest.raises(CheckpointError, match="never written over"):
        store.save(3, _writer(b"two"))
    latest = store.latest()
    assert latest is not None
    assert (latest.folder / "weights.bin").read_bytes() == b"one"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        assert store.save(step, _writer(b"x" * step)) == 2 * step
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
