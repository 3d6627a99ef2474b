"""What a run folder says: accounts, curves and evaluations as plain data, for any view to draw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rledger.books.balance import DataBalance, SpanNode, TimeBalance, data_balance, time_balance
from rledger.books.reader import (
    MetricsRow,
    RunBooks,
    read_books,
    read_metrics,
    surviving_by_attempt,
)
from rledger.books.records import BoundsMeasured, SpanRecord, StageSkipped, State
from rledger.errors import BooksError, RunFolderError

__all__ = [
    "Curve",
    "ElapsedAccount",
    "Evaluation",
    "Measured",
    "RunReading",
    "TimeAccount",
    "merge_nodes",
    "read_run",
]


@dataclass(frozen=True, slots=True)
class TimeAccount:
    """The time of some steps on one lane, added up; and of the last of them alone."""

    lane: str
    steps: tuple[int, ...]
    root: SpanNode
    last: SpanNode
    by_state: dict[State, float]
    worst_unaccounted_frac: float
    worst_step: int
    process_cpu_s: float

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def wall_s(self) -> float:
        return self.root.seconds

    @property
    def unaccounted_s(self) -> float:
        return self.root.exclusive_s

    @property
    def exclusive_s(self) -> float:
        """Exclusive times of everything inside the steps, added up one by one."""
        return sum(node.exclusive_s for node in self.root.walk() if node is not self.root)


@dataclass(frozen=True, slots=True)
class ElapsedAccount:
    """Where the time between the first and the last record of all attempts went, on one lane."""

    total_s: float
    parts: dict[str, float]  # name -> seconds; with `between` they add up to the total
    inside_steps: dict[str, float]  # testing and save_checkpoint, inside the part "steps"


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over steps."""

    name: str
    title: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluated figure, with its bootstrap interval where there is one."""

    step: int
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One figure of one task: first, last and best measurement."""

    task: str
    figure: str
    num_prompts: int | None
    measured: tuple[Measured, ...]

    @property
    def before(self) -> Measured:
        return self.measured[0]

    @property
    def after(self) -> Measured:
        return self.measured[-1]


@dataclass(frozen=True, slots=True)
class RunReading:
    """Everything the report shows."""

    folder: Path
    books: RunBooks
    recipe: dict[str, Any]
    rows: tuple[MetricsRow, ...]  # of the steps asked for
    time: TimeAccount | None
    elapsed: ElapsedAccount
    data: DataBalance
    curves: tuple[Curve, ...]
    evaluations: tuple[Evaluation, ...]
    skipped: dict[str, str] = field(default_factory=dict)  # stage -> why it did not run
    bounds: BoundsMeasured | None = None
    broken: tuple[str, ...] = ()  # accounts that do not balance, in words

    def setting(self, key: str) -> object | None:
        """A value of the recipe by its dotted key; None where the run has no such key."""
        value: object = self.recipe
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        return value

    def mean(self, metric: str) -> float | None:
        """Mean of a metric over the rows that have it."""
        values = [row[metric] for row in self.rows if metric in row]
        return sum(values) / len(values) if values else None

    def total(self, metric: str) -> float:
        """Sum of a metric over the rows that have it."""
        return sum(row[metric] for row in self.rows if metric in row)


_CURVES = (
    ("critic/score/mean", "reward"),
    ("response_length/mean", "response length (tokens)"),
    ("actor/entropy", "entropy (nats)"),
    ("actor/ppo_kl", "KL old to new (nats)"),
    ("actor/kl_loss", "KL to reference (nats)"),
    ("actor/reward_kl_penalty", "KL to reference (nats)"),
    ("actor/grad_norm", "gradient norm"),
    ("actor/pg_clipfrac", "clipped share"),
    ("data/zero_signal_group_frac", "groups without signal (share)"),
    ("timing_s/step", "time per step (s)"),
)


def read_run(
    folder: Path, *, steps: tuple[int, int] | None = None, lane: str = "main"
) -> RunReading:
    """Read a run folder; `steps` (both included) limits time, throughput and curves to a range.

    Raises RunFolderError when there is nothing to read, or no such steps.
    """
    folder = Path(folder)
    books = read_books(folder)
    all_rows = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    records = books.step_records(lane)
    chosen = {s: r for s, r in records.items() if s > 0 and _within(s, steps)}
    if steps is not None and not chosen:
        known = [s for s in records if s > 0]
        has = f"it has {known[0]}..{known[-1]}" if known else "it has closed none yet"
        raise RunFolderError(f"{folder}: no closed step in {steps[0]}:{steps[1]}; {has}")
    rows = tuple(r for r in all_rows if r["step"] > 0 and _within(int(r["step"]), steps))
    time, broken = _time_account(chosen, lane)
    surviving = books.surviving()
    data = data_balance(surviving)
    bounds = [r for r in surviving if isinstance(r, BoundsMeasured)]
    return RunReading(
        folder=folder,
        books=books,
        recipe=_read_recipe(folder / "recipe.json"),
        rows=rows,
        time=time,
        elapsed=_elapsed_account(books, lane),
        data=data,
        curves=tuple(_curves(rows, all_rows)),
        evaluations=tuple(_evaluations(all_rows)),
        skipped={r.stage: r.why for r in surviving if isinstance(r, StageSkipped)},
        bounds=bounds[-1] if bounds else None,
        broken=(*broken, *data.imbalances),
    )


def merge_nodes(nodes: Sequence[SpanNode]) -> SpanNode:
    """Several trees as one: nodes of the same names along the way are added up."""
    merged = SpanNode(nodes[0].name, nodes[0].state)
    for node in nodes:
        merged.num_calls += node.num_calls
        merged.seconds += node.seconds
        merged.exclusive_s += node.exclusive_s
        merged.num_raised += node.num_raised
        for name, value in node.counts.items():
            merged.counts[name] = merged.counts.get(name, 0) + value
    names = dict.fromkeys(name for node in nodes for name in node.children)
    for name in names:
        merged.children[name] = merge_nodes(
            [node.children[name] for node in nodes if name in node.children]
        )
    return merged


def _within(step: int, steps: tuple[int, int] | None) -> bool:
    return steps is None or steps[0] <= step <= steps[1]


def _time_account(
    records: dict[int, list[SpanRecord]], lane: str
) -> tuple[TimeAccount | None, list[str]]:
    balances: list[TimeBalance] = []
    broken: list[str] = []
    for step, spans in records.items():
        try:
            balances.append(time_balance(spans, step, lane))
        except BooksError as error:
            broken.append(str(error))
    if not balances:
        return None, broken
    by_state: dict[State, float] = {}
    for balance in balances:
        for state, state_s in balance.exclusive_by_state.items():
            by_state[state] = by_state.get(state, 0.0) + state_s
    worst = max(balances, key=lambda b: b.unaccounted_frac)
    root = merge_nodes([b.root for b in balances])
    account = TimeAccount(
        lane=lane,
        steps=tuple(b.step for b in balances),
        root=root,
        last=balances[-1].root,
        by_state=by_state,
        worst_unaccounted_frac=worst.unaccounted_frac,
        worst_step=worst.step,
        process_cpu_s=root.counts.get("process_cpu_s", 0.0),
    )
    return account, broken


def _elapsed_account(books: RunBooks, lane: str) -> ElapsedAccount:
    parts = {"start_up": 0.0, "before step 1": 0.0, "steps": 0.0}
    inside = {"testing": 0.0, "save_checkpoint": 0.0}
    total_s = 0.0
    survivors = surviving_by_attempt([a.records for a in books.attempts])
    for attempt, kept in zip(books.attempts, survivors, strict=True):
        spans = [r for r in attempt.records if isinstance(r, SpanRecord) and r.lane == lane]
        if not spans:
            continue
        total_s += attempt.end_s
        kept_steps = {r.step for r in kept if isinstance(r, SpanRecord) and r.parent == -1}
        names = {r.id: _part_of(r, kept_steps) for r in spans if r.parent == -1}
        for span in spans:
            if span.parent == -1:
                parts[names[span.id]] = parts.get(names[span.id], 0.0) + span.seconds
            elif names.get(span.parent) == "steps" and span.name in inside:
                inside[span.name] += span.seconds
        # A step that was open when the attempt ended has children and no root.
        last_root_s = max((r.end_s for r in spans if r.parent == -1), default=0.0)
        if any(r.start_s >= last_root_s for r in spans):
            parts["cut off"] = parts.get("cut off", 0.0) + attempt.end_s - last_root_s
    parts["between"] = total_s - sum(parts.values())
    return ElapsedAccount(total_s, {n: s for n, s in parts.items() if s > 0}, inside)


def _part_of(root: SpanRecord, kept_steps: set[int | None]) -> str:
    if root.name != "step":
        return root.name
    if root.step == 0:
        return "before step 1"
    return "steps" if root.step in kept_steps else "rolled back"


def _curves(rows: Sequence[MetricsRow], all_rows: Sequence[MetricsRow]) -> Iterable[Curve]:
    """What is worth a plot, most telling first; a constant is not."""
    for name in dict.fromkeys(n for r in all_rows for n in r if _is_accuracy(n)):
        title = name.removeprefix("val-core/").replace("/acc/", " accuracy ")
        yield from _curve(name, title, all_rows)
    for name, title in _CURVES:
        yield from _curve(name, title, rows)


def _curve(name: str, title: str, rows: Iterable[MetricsRow]) -> Iterable[Curve]:
    points = [(int(r["step"]), r[name]) for r in rows if name in r]
    if len({value for _, value in points}) > 1:
        steps, values = zip(*points, strict=True)
        yield Curve(name, title, steps, values)


def _is_accuracy(name: str) -> bool:
    return name.startswith("val-core/") and "/acc/mean@" in name


def _evaluations(rows: Sequence[MetricsRow]) -> Iterable[Evaluation]:
    names = dict.fromkeys(n for r in rows for n in r if n.startswith("val-core/"))
    for name in names:
        _, task, figure = name.split("/", 2)
        aside = f"val-aux/{task}/{figure}"
        measured = tuple(
            Measured(int(r["step"]), r[name], r.get(f"{aside}/ci_low"), r.get(f"{aside}/ci_high"))
            for r in rows
            if name in r
        )
        sizes = [
            r[f"val-aux/{task}/num_prompts"] for r in rows if f"val-aux/{task}/num_prompts" in r
        ]
        yield Evaluation(task, figure, int(sizes[-1]) if sizes else None, measured)


def _read_recipe(path: Path) -> dict[str, Any]:
    """The resolved recipe as plain JSON: a report must read runs of older versions too."""
    if not path.is_file():
        return {}
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{path}: is no JSON ({error})") from error
    return recipe if isinstance(recipe, dict) else {}
