"""The default launch: one process and its reward workers, every role on one thread, in program order."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

from rledger.books import Books, BoundsMeasured, Lane
from rledger.books.metrics import MetricsWriter
from rledger.books.names import METRICS
from rledger.config.load import LoadedRecipe
from rledger.config.recipe import Recipe
from rledger.cost import mfu_flops
from rledger.generator import build_generator
from rledger.launch.bounds import measure_bounds
from rledger.launch.preflight import check_start, check_vocabulary
from rledger.launch.record_watch import RecordWatch
from rledger.loop.checkpoint import CheckpointStore
from rledger.loop.context import LoopContext, Roles
from rledger.loop.controller import Controller, RunOutcome
from rledger.loop.eventloop import RealClock, run_booked
from rledger.loop.plan import RunPlan, plan_run
from rledger.loop.recorder import Observer, StepRecorder, TrajectoryLog
from rledger.loop.run_folder import RunFolder
from rledger.loop.savepoint import Savepoints
from rledger.loop.shutdown import StopSignal, stop_on_signals
from rledger.models.placement import Placement, choose_placement
from rledger.modelspec import load_spec
from rledger.report.live import LiveView
from rledger.report.sinks import build_sinks
from rledger.tasks.build import build_tasks
from rledger.trainer import build_advantage_estimator, build_critic, build_trainer
from rledger.weights import InProcessTransport

__all__ = ["build_roles", "train"]


def train(loaded: LoadedRecipe) -> RunOutcome:
    """Run a recipe to its end, or until it is told to stop; an existing run is resumed."""
    recipe = loaded.recipe
    plan = plan_run(recipe)
    check_start(recipe)
    path = Path(recipe.run.root) / recipe.run.name
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(path, recipe))
        store = CheckpointStore(folder.checkpoints, keep=recipe.checkpoint.keep)
        store.remove_unfinished()
        folder.rewind(store.latest_step())
        view = stack.enter_context(LiveView(recipe.run.name, path))
        books = Books.open(path)
        stack.callback(books.close)
        lane = books.lane("main")
        with lane.span("start_up"):
            sinks = build_sinks(recipe.sinks, path)
            metrics = MetricsWriter(path, METRICS, sinks)
            stack.callback(metrics.close)
            trajectories = TrajectoryLog(path)
            stack.callback(trajectories.close)
            roles = build_roles(recipe, plan, lane)
            bounds = measure_bounds(_placement(recipe))
            books.book(bounds)
        watch = RecordWatch(books, metrics, trajectories, view.announce)
        stop = StopSignal()
        with stop_on_signals(stop, view.announce, partial(_end_at_once, view)):
            outcome = _drive(
                recipe,
                plan,
                roles,
                books,
                lane,
                metrics,
                trajectories,
                store,
                stop,
                [view, watch],
                bounds,
            )
        if outcome.finished and plan.export_hf and (outcome.advanced or not folder.model.exists()):
            with lane.span("export_model", state="io"):
                folder.write_model(roles.trainer.export_hf)
        watch.require_complete()
        return outcome


def _end_at_once(view: LiveView) -> NoReturn:
    """As a kill would, which a run survives at any point; reward workers end with their sockets."""
    view.stop()
    sys.stdout.flush()
    sys.stderr.write(
        "rledger train: stopped at once; the same command resumes at the last checkpoint, if there is one\n"
    )
    sys.stderr.flush()
    os._exit(130)


def build_roles(recipe: Recipe, plan: RunPlan, lane: Lane) -> Roles:
    """The real roles of a recipe, all on `lane`, the generator still without weights."""
    model_folder = Path(recipe.model.path)
    placement = _placement(recipe)
    tasks = build_tasks(recipe.tasks, model_folder, seed=recipe.run.seed, lane=lane)
    check_vocabulary(recipe, tasks.tokenizer.vocab_size)
    trainer = build_trainer(recipe, model_folder, placement=placement, lane=lane)
    return Roles(
        tasks=tasks,
        generator=build_generator(
            recipe.generator,
            model_folder,
            placement=placement,
            lane=lane,
            decode=tasks.decode,
            deterministic=recipe.run.deterministic,
        ),
        trainer=trainer,
        critic=build_critic(recipe, model_folder, placement=placement, lane=lane)
        if plan.needs_values
        else None,
        estimator=build_advantage_estimator(recipe),
        transport=InProcessTransport(),
    )


def _placement(recipe: Recipe) -> Placement:
    return choose_placement(recipe.model.device, recipe.model.dtype, recipe.run.threads_per_role)


def _drive(
    recipe: Recipe,
    plan: RunPlan,
    roles: Roles,
    books: Books,
    lane: Lane,
    metrics: MetricsWriter,
    trajectories: TrajectoryLog,
    store: CheckpointStore,
    stop: StopSignal,
    observers: Sequence[Observer],
    bounds: BoundsMeasured,
) -> RunOutcome:
    context = LoopContext(
        plan=plan,
        roles=roles,
        books=books,
        lane=lane,
        clock=RealClock(),
        stop_token_ids=roles.tasks.stop_token_ids,
    )
    spec = load_spec(recipe.model.path)
    recorder = StepRecorder(
        books,
        lane,
        metrics=metrics,
        trajectories=trajectories,
        observers=observers,
        max_prompt_tokens=recipe.tasks.max_prompt_tokens,
        update_flops=lambda batch: float(mfu_flops(spec, batch.lengths.tolist())),
        peak_flops_per_s=bounds.flops_per_s,
    )
    controller = Controller(context, recorder=recorder, savepoints=Savepoints(store), stop=stop)

    async def run() -> RunOutcome:
        try:
            return await controller.run()
        finally:
            await roles.close()

    return run_booked(run(), lane, context.waiting)
