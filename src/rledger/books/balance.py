"""Do the books balance? Pure functions from records to accounts; they repair nothing.

Time: on one lane, a step's exclusive times add up to its wall time; what no child of the step
covers is `unaccounted`. Data: admitted = trained + dropped + buffered + in flight, for groups,
trajectories and tokens; each group has at most one terminal event on the surviving timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rledger.books.records import (
    DropReason,
    GroupAdmitted,
    GroupEnded,
    Record,
    SpanRecord,
    State,
    StepCommitted,
    TrajectoryEnded,
)
from rledger.errors import BooksError

__all__ = ["DataBalance", "Flow", "SpanNode", "TimeBalance", "data_balance", "time_balance"]


@dataclass(slots=True)
class SpanNode:
    """All spans of one name below the same parents, merged."""

    name: str
    state: State
    num_calls: int = 0
    seconds: float = 0.0  # own time and that of everything inside
    exclusive_s: float = 0.0  # own time alone
    num_raised: int = 0
    counts: dict[str, float] = field(default_factory=dict)  # as booked on these spans
    children: dict[str, SpanNode] = field(default_factory=dict)

    def total(self, count: str) -> float:
        """The count of these spans: as booked on them, else the sum of their children's."""
        if count in self.counts:
            return self.counts[count]
        return sum(child.total(count) for child in self.children.values())

    def walk(self) -> Iterable[SpanNode]:
        """This node and all below, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class TimeBalance:
    """The time account of one step on one lane."""

    step: int
    lane: str
    policy_version: int | None
    start_s: float
    end_s: float
    root: SpanNode

    @property
    def wall_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def unaccounted_s(self) -> float:
        """Time inside the step that no child of it covers."""
        return self.root.exclusive_s

    @property
    def unaccounted_frac(self) -> float:
        return self.unaccounted_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def exclusive_by_name(self) -> dict[str, float]:
        """Exclusive seconds of each span name; with `unaccounted_s` they add up to `wall_s`."""
        total: dict[str, float] = {}
        for node in self.root.walk():
            if node is not self.root:
                total[node.name] = total.get(node.name, 0.0) + node.exclusive_s
        return total

    @property
    def exclusive_by_state(self) -> dict[State, float]:
        """Exclusive seconds in each state; with `unaccounted_s` they add up to `wall_s`."""
        total: dict[State, float] = {}
        for node in self.root.walk():
            if node is not self.root:
                total[node.state] = total.get(node.state, 0.0) + node.exclusive_s
        return total


def time_balance(records: Iterable[Record], step: int, lane: str = "main") -> TimeBalance:
    """The time account of `step` on `lane`.

    Raises BooksError when it cannot be right: no root or two, a row lost or doubled, a span outside
    its parent, or siblings that overlap.
    """
    spans = [r for r in records if isinstance(r, SpanRecord) and r.step == step and r.lane == lane]
    where = f"step {step} on lane {lane!r}"
    roots = [s for s in spans if s.parent == -1]
    if len(roots) != 1 or roots[0].name != "step":
        names = [s.name for s in roots]
        raise BooksError(f"{where}: needs exactly one root span 'step', has {names}")
    root = roots[0]
    _check_rows(spans, root, where)
    children: dict[int, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda s: s.id):
        children.setdefault(span.parent, []).append(span)
    node = SpanNode(root.name, root.state)
    _fill(node, root, children, where)
    return TimeBalance(step, lane, root.policy_version, root.start_s, root.end_s, node)


def _check_rows(spans: Sequence[SpanRecord], root: SpanRecord, where: str) -> None:
    """Ids number the spans in order of opening, so those inside the root are known beforehand."""
    ids = Counter(s.id for s in spans)
    doubled = [i for i, n in ids.items() if n > 1]
    if doubled:
        raise BooksError(f"{where}: span rows {doubled} stand there more than once")
    expected = range(root.id, root.id + root.num_inside + 1)
    missing = [i for i in expected if i not in ids]
    if missing:
        raise BooksError(f"{where}: span rows {missing} are missing")
    foreign = [i for i in ids if i not in expected]
    if foreign:
        raise BooksError(f"{where}: span rows {foreign} lie outside the step")


def _fill(
    node: SpanNode, span: SpanRecord, children: dict[int, list[SpanRecord]], where: str
) -> int:
    """Add `span` and all inside it to `node`. Returns the number of spans inside, checked."""
    node.num_calls += 1
    node.num_raised += span.raised
    node.seconds += span.seconds
    for name, value in span.counts.items():
        node.counts[name] = node.counts.get(name, 0) + value
    inside_s = 0.0
    num_inside = 0
    covered_until_s = span.start_s
    for child in children.get(span.id, ()):
        if child.start_s < covered_until_s or child.end_s > span.end_s or child.seconds < 0:
            raise BooksError(
                f"{where}: span {child.name!r} ({child.start_s:.6f}..{child.end_s:.6f} s) does not"
                f" lie in its place inside {span.name!r} ({span.start_s:.6f}..{span.end_s:.6f} s)"
            )
        covered_until_s = child.end_s
        key = child.name if not child.on else f"{child.name} for {child.on}"
        below = node.children.setdefault(key, SpanNode(key, child.state))
        num_inside += 1 + _fill(below, child, children, where)
        inside_s += child.seconds
    node.exclusive_s += span.seconds - inside_s
    if num_inside != span.num_inside:
        raise BooksError(
            f"{where}: span {span.name!r} counted {span.num_inside} spans inside, {num_inside} are"
            " booked below it"
        )
    return num_inside


@dataclass(slots=True)
class Flow:
    """One kind of thing: `came` = trained + dropped + buffered + in flight."""

    came: int = 0  # admitted; for tokens: generated
    trained: int = 0
    useful: int = 0  # part of trained; counted for tokens
    dropped: dict[DropReason, int] = field(default_factory=dict)
    buffered: int = 0  # complete, not yet taken or dropped
    in_flight: int = 0

    @property
    def num_dropped(self) -> int:
        return sum(self.dropped.values())

    @property
    def difference(self) -> int:
        """Zero when it balances."""
        return self.came - self.trained - self.num_dropped - self.buffered - self.in_flight

    def _drop(self, reasons: dict[DropReason, int]) -> None:
        for reason, count in reasons.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count


@dataclass(slots=True)
class DataBalance:
    """The data account of a run, or of its steps up to one."""

    groups: Flow = field(default_factory=Flow)
    trajectories: Flow = field(default_factory=Flow)
    tokens: Flow = field(default_factory=Flow)
    prompt_tokens: int = 0  # of ended trajectories, each counted whole
    num_failed_trajectories: int = 0
    num_commits: int = 0
    imbalances: list[str] = field(default_factory=list)

    @property
    def balances(self) -> bool:
        return not self.imbalances

    def require(self) -> DataBalance:
        """Itself when it balances; raises BooksError with all imbalances otherwise."""
        if self.imbalances:
            raise BooksError("the data account does not balance: " + "; ".join(self.imbalances))
        return self


@dataclass(slots=True)
class _GroupRows:
    admitted: list[GroupAdmitted] = field(default_factory=list)
    trajectories: list[TrajectoryEnded] = field(default_factory=list)
    ended: list[GroupEnded] = field(default_factory=list)
    commits: list[StepCommitted] = field(default_factory=list)


def data_balance(
    records: Iterable[Record], *, up_to_step: int | None = None, closed: bool = False
) -> DataBalance:
    """The data account of the surviving timeline (see `reader.surviving`).

    `closed` says that the run ended in order, so nothing may be buffered or in flight any more.
    """
    groups, num_commits = _rows_by_group(records, up_to_step)
    balance = DataBalance(num_commits=num_commits)
    for group_id, rows in groups.items():
        _add_group(balance, group_id, rows)
    for what, flow in (
        ("groups", balance.groups),
        ("trajectories", balance.trajectories),
        ("tokens", balance.tokens),
    ):
        if flow.difference:
            balance.imbalances.append(
                f"{what}: {flow.came} came, {flow.trained} trained + {flow.num_dropped} dropped +"
                f" {flow.buffered} buffered + {flow.in_flight} in flight ="
                f" {flow.came - flow.difference}"
            )
        if closed and (flow.buffered or flow.in_flight):
            balance.imbalances.append(
                f"{what}: {flow.buffered} buffered and {flow.in_flight} in flight after the end"
            )
    return balance


def _rows_by_group(
    records: Iterable[Record], up_to_step: int | None
) -> tuple[dict[str, _GroupRows], int]:
    groups: dict[str, _GroupRows] = {}
    num_commits = 0
    for record in records:
        if not isinstance(record, GroupAdmitted | TrajectoryEnded | GroupEnded | StepCommitted):
            continue
        if up_to_step is not None and record.step > up_to_step:
            continue
        if isinstance(record, StepCommitted):
            num_commits += 1
            for group_id in record.group_ids:
                groups.setdefault(group_id, _GroupRows()).commits.append(record)
            continue
        rows = groups.setdefault(record.group_id, _GroupRows())
        if isinstance(record, GroupAdmitted):
            rows.admitted.append(record)
        elif isinstance(record, TrajectoryEnded):
            rows.trajectories.append(record)
        else:
            rows.ended.append(record)
    return groups, num_commits


def _add_group(balance: DataBalance, group_id: str, rows: _GroupRows) -> None:
    wrong = balance.imbalances
    if len(rows.admitted) != 1:
        wrong.append(f"group {group_id} was admitted {len(rows.admitted)} times")
    if len(rows.ended) > 1:
        wrong.append(f"group {group_id} has {len(rows.ended)} terminal events")
    ids = Counter(t.trajectory_id for t in rows.trajectories)
    wrong.extend(f"trajectory {t} ended {n} times" for t, n in ids.items() if n > 1)
    num_owed = sum(a.group_size for a in rows.admitted)
    generated = sum(t.generated_tokens for t in rows.trajectories)
    balance.groups.came += len(rows.admitted)
    balance.trajectories.came += num_owed
    balance.tokens.came += generated
    balance.prompt_tokens += sum(t.prompt_tokens for t in rows.trajectories)
    balance.num_failed_trajectories += sum(t.failure is not None for t in rows.trajectories)
    for end in rows.ended:
        _add_end(balance, end)
    if not rows.ended and rows.admitted:
        complete = len(rows.trajectories) >= num_owed
        balance.groups.buffered += complete
        balance.groups.in_flight += not complete
        balance.trajectories.buffered += len(rows.trajectories)
        balance.trajectories.in_flight += num_owed - len(rows.trajectories)
        balance.tokens.buffered += generated
    elif len(rows.ended) == 1:
        wrong.extend(_disagreements(group_id, rows.ended[0], num_owed, generated))
    wrong.extend(_commit_errors(group_id, rows))


def _add_end(balance: DataBalance, end: GroupEnded) -> None:
    groups, trajectories, tokens = balance.groups, balance.trajectories, balance.tokens
    groups.trained += end.fate == "trained"
    if end.reason is not None:
        groups._drop({end.reason: 1})
    trajectories.trained += end.num_trained_trajectories
    trajectories._drop(end.dropped_trajectories)
    tokens.trained += end.trained_tokens
    tokens.useful += end.useful_tokens
    tokens._drop(end.dropped_tokens)


def _disagreements(group_id: str, end: GroupEnded, num_owed: int, generated: int) -> list[str]:
    """Where the terminal event and the group's own rows tell different stories."""
    wrong = []
    num_ended = end.num_trained_trajectories + sum(end.dropped_trajectories.values())
    if num_ended != num_owed:
        wrong.append(f"group {group_id}: {num_owed} trajectories admitted, {num_ended} ended")
    num_tokens = end.trained_tokens + sum(end.dropped_tokens.values())
    if num_tokens != generated:
        wrong.append(f"group {group_id}: {generated} tokens generated, {num_tokens} accounted for")
    return wrong


def _commit_errors(group_id: str, rows: _GroupRows) -> list[str]:
    trained = [e for e in rows.ended if e.fate == "trained"]
    if len(rows.commits) > 1:
        steps = [c.step for c in rows.commits]
        return [f"group {group_id} was committed more than once, in steps {steps}"]
    if trained and not rows.commits:
        return [f"group {group_id} is booked as trained and stands in no commit"]
    if rows.commits and not trained:
        return [f"group {group_id} was committed and is not booked as trained"]
    if trained and trained[0].step != rows.commits[0].step:
        return [f"group {group_id} was trained in step {trained[0].step}, committed in another"]
    return []
