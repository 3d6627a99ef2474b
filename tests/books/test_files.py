"""Books on disk: attempts, kills at any byte, a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from rledger.books import Books, GroupAdmitted, Resumed, StepCommitted
from rledger.books.appender import LineFile
from rledger.books.balance import time_balance
from rledger.books.reader import read_books, read_metrics
from rledger.books.records import BooksCost, SpanRecord
from rledger.errors import RunFolderError


def book_steps(folder, steps, resumed_from=None):
    books = Books.open(folder)
    lane = books.lane("main")
    if resumed_from is not None:
        books.book(Resumed(step=resumed_from, policy_version=resumed_from))
    for step in steps:
        with lane.step(step, step - 1):
            with lane.span("gen", tokens=8):
                pass
            books.book(
                GroupAdmitted(
                    group_id=f"g{step}",
                    prompt_id="p",
                    group_size=1,
                    step=step,
                    policy_version=step - 1,
                )
            )
            books.book(StepCommitted(step=step, policy_version=step, group_ids=()))
    books.close()
    return books


def test_what_was_booked_is_read_back(tmp_path) -> None:
    book_steps(tmp_path, [1, 2, 3])
    books = read_books(tmp_path)
    (attempt,) = books.attempts
    assert (attempt.opened.attempt, attempt.opened.process) == (1, "main")
    assert attempt.opened.pid == os.getpid()
    assert books.steps() == [1, 2, 3]
    assert books.lanes() == ["main"]
    assert time_balance(books.surviving(), 2).root.children["gen"].counts == {"tokens": 8}
    assert attempt.cost is not None
    assert attempt.cost.cost_s > 0
    size_bytes = attempt.path.stat().st_size
    assert 0 < attempt.cost.written_bytes < size_bytes


def test_a_resumed_run_opens_a_new_file_and_supersedes_later_steps(tmp_path) -> None:
    book_steps(tmp_path, [1, 2, 3])
    before = (tmp_path / "books" / "0001-main.jsonl").read_bytes()
    book_steps(tmp_path, [3, 4], resumed_from=2)
    books = read_books(tmp_path)
    assert [a.opened.attempt for a in books.attempts] == [1, 2]
    assert (tmp_path / "books" / "0001-main.jsonl").read_bytes() == before
    assert books.steps() == [1, 2, 3, 4]
    admitted = [r.group_id for r in books.surviving() if isinstance(r, GroupAdmitted)]
    assert admitted == ["g1", "g2", "g3", "g4"]
    assert time_balance(books.surviving(), 3).wall_s > 0


def test_a_file_cut_at_any_byte_is_read_up_to_the_cut(tmp_path) -> None:
    book_steps(tmp_path, [1, 2])
    path = tmp_path / "books" / "0001-main.jsonl"
    data = path.read_bytes()
    header_end = data.index(b"\n") + 1
    whole = read_books(tmp_path).attempts[0].records
    for cut in range(header_end, len(data), 7):
        path.write_bytes(data[:cut])
        books = read_books(tmp_path)
        records = books.attempts[0].records
        assert records == whole[: len(records)]
        assert books.num_torn_lines == (data[cut - 1 : cut] != b"\n")
    path.write_bytes(data[: header_end // 2])
    with pytest.raises(RunFolderError, match="no books"):
        read_books(tmp_path)


def test_garbage_in_the_middle_is_counted_and_skipped(tmp_path) -> None:
    book_steps(tmp_path, [1])
    path = tmp_path / "books" / "0001-main.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(3, b'{"kind":"span","id":"not a number"}\n\xff\xfe\n')
    path.write_bytes(b"".join(lines))
    books = read_books(tmp_path)
    assert books.num_torn_lines == 2
    assert books.steps() == [1]


def test_a_row_taken_out_of_the_file_is_missed(tmp_path) -> None:
    book_steps(tmp_path, [1, 2])
    path = tmp_path / "books" / "0001-main.jsonl"
    assert read_books(tmp_path).attempts[0].num_missing_rows == 0
    lines = path.read_bytes().splitlines(keepends=True)
    rows = [i for i, line in enumerate(lines) if b'"group_admitted"' in line]
    del lines[rows[0]]
    path.write_bytes(b"".join(lines))
    assert read_books(tmp_path).attempts[0].num_missing_rows == 1


def test_each_attempt_has_its_own_start(tmp_path) -> None:
    book_steps(tmp_path, [0, 1])
    book_steps(tmp_path, [0, 2], resumed_from=1)
    books = read_books(tmp_path)
    assert books.steps() == [0, 1, 2]
    steps = books.step_records()
    assert list(steps) == [0, 1, 2]
    for step, spans in steps.items():
        assert time_balance(spans, step).wall_s > 0


def test_a_newer_schema_is_named_as_such(tmp_path) -> None:
    book_steps(tmp_path, [1])
    path = tmp_path / "books" / "0001-main.jsonl"
    path.write_text(path.read_text().replace('"schema_version":1', '"schema_version":99'))
    with pytest.raises(RunFolderError, match=r"schema 99.*upgrade rledger"):
        read_books(tmp_path)


def test_a_killed_process_loses_nothing_after_its_last_commit(tmp_path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from rledger.books import Books, StepCommitted
        books = Books.open(Path(sys.argv[1]))
        lane = books.lane("main")
        for step in (1, 2, 3):
            with lane.step(step, step - 1):
                with lane.span("gen"):
                    pass
                books.book(StepCommitted(step=step, policy_version=step, group_ids=()))
                if step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    books = read_books(tmp_path)
    assert books.steps() == [1, 2]  # the third was never closed
    commits = [r.step for r in books.surviving() if isinstance(r, StepCommitted)]
    assert commits == [1, 2, 3]


def test_a_full_disk_stops_nothing_and_loses_nothing_once_there_is_room(
    tmp_path, monkeypatch
) -> None:
    real_write = os.write
    room_bytes = 100

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room_bytes
        if room_bytes <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        num_written = real_write(descriptor, bytes(data)[:room_bytes])
        room_bytes -= num_written
        return num_written

    monkeypatch.setattr("rledger.books.appender.os.write", write)
    file = LineFile(tmp_path / "lines")
    lines = [f"line {i}\n".encode() for i in range(100)]
    for line in lines[:50]:
        file.write(line)
    assert "No space left on device" in file.problem
    room_bytes = 10**6
    for line in lines[50:]:
        file.write(line)
    file.close()
    assert file.problem == ""
    assert file.lost_lines == 0
    assert (tmp_path / "lines").read_bytes() == b"".join(lines)


def test_a_torn_end_is_closed_before_appending(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1,"critic/score/mean":0.5}\n{"step":2,"cri')
    file = LineFile(path)
    file.write(b'{"step":2,"critic/score/mean":0.75}\n')
    file.close()
    assert [(r["step"], r["critic/score/mean"]) for r in read_metrics(tmp_path)] == [
        (1, 0.5),
        (2, 0.75),
    ]


def test_an_unwritable_folder_is_named(tmp_path) -> None:
    (tmp_path / "books").write_text("a file where a folder should be")
    with pytest.raises(RunFolderError, match="cannot be written"):
        Books.open(tmp_path)


def test_long_stages_are_written_before_they_end(tmp_path) -> None:
    books = Books.open(tmp_path)
    lane = books.lane("main")
    with lane.step(1, 0), lane.span("gen"):
        for _ in range(5000):
            with lane.span("decode"):
                pass
        assert len(books.records) < 4096
        read = read_books(tmp_path).attempts[0].records
        assert sum(isinstance(r, SpanRecord) for r in read) >= 4096
    books.close()
    read = read_books(tmp_path).attempts[0].records
    assert sum(isinstance(r, SpanRecord) for r in read) == 5002
    costs = [r for r in read if isinstance(r, BooksCost)]
    assert costs[-1].cost_s > costs[0].cost_s


def test_lanes_of_several_threads_lose_nothing(tmp_path) -> None:
    books = Books.open(tmp_path)

    def work(name: str) -> None:
        lane = books.lane(name)
        for step in range(1, 41):
            with lane.step(step, step - 1):
                for _ in range(50):
                    with lane.span("decode"):
                        pass

    threads = [threading.Thread(target=work, args=(f"lane {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    books.close()
    read = read_books(tmp_path)
    assert (read.num_torn_lines, read.attempts[0].num_missing_rows) == (0, 0)
    for name in read.lanes():
        steps = read.step_records(name)
        assert list(steps) == list(range(1, 41))
        assert all(time_balance(spans, step, name).wall_s > 0 for step, spans in steps.items())
    assert len(read.lanes()) == 4
