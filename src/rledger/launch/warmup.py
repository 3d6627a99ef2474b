"""Supervised warm-up: a small policy made from nothing that sometimes knows the answer.

The update is the trainer's own: a policy gradient whose advantage is 1 on every token of the right
answer is maximum likelihood, so the warm-up has no loss or optimizer of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rledger.books import Books
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.generator import GeneratorConfig
from rledger.config.model import ModelConfig
from rledger.config.policy_loss import ReinforceLoss
from rledger.config.recipe import Recipe
from rledger.config.run import RunConfig
from rledger.config.sampling import SamplingConfig
from rledger.config.warmup import WarmupConfig, WarmupRecipe
from rledger.errors import DataError, RunFolderError
from rledger.generator import build_generator
from rledger.interfaces import Generator, Tasks
from rledger.loop.batching import build_batch
from rledger.models.char_tokenizer import char_vocabulary, write_char_tokenizer
from rledger.models.checkpoint import save_decoder
from rledger.models.init import random_decoder
from rledger.models.placement import Placement, choose_placement
from rledger.modelspec import spec_from_config
from rledger.tasks.build import LocalTasks, build_dataset, build_tasks
from rledger.tasks.evaluation import accuracy_of
from rledger.trainer import build_trainer
from rledger.types import (
    Batch,
    Completion,
    GenerationRequest,
    Group,
    Prompt,
    SamplingParams,
    Score,
    Trajectory,
    VersionSpan,
)

__all__ = ["warm_up"]

_NUM_ALPHABET_ROWS = 2000


def warm_up(config: WarmupRecipe, say: Callable[[str], None]) -> float:
    """Make the policy that `config` describes; returns its greedy accuracy on the held-out prompts."""
    output = Path(config.warmup.output)
    if output.exists():
        raise RunFolderError(f"{output} exists; remove it, or choose another warmup.output")
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        placement = choose_placement("cpu", "float32", config.warmup.threads)
        placement.apply_threads()
        _write_untrained(config, aside)
        accuracy = asyncio.run(_train(config, aside, placement, output, say))
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return accuracy


def _write_untrained(config: WarmupRecipe, folder: Path) -> None:
    texts = []
    for section in config.tasks.datasets:
        dataset = build_dataset(section)
        rows = [dataset.train_row(index) for index in range(_NUM_ALPHABET_ROWS)]
        texts += [row.question + str(row.payload["answer"]) for row in rows if row is not None]
    vocabulary = char_vocabulary(texts)
    shape = config.shape
    spec = spec_from_config(
        {
            "model_type": shape.family,
            "vocab_size": len(vocabulary),
            "hidden_size": shape.width,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "intermediate_size": shape.ffn_width,
            "max_position_embeddings": shape.max_positions,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 0,
        }
    )
    save_decoder(random_decoder(spec, config.warmup.seed), folder)
    write_char_tokenizer(folder, vocabulary)


async def _train(
    config: WarmupRecipe,
    folder: Path,
    placement: Placement,
    output: Path,
    say: Callable[[str], None],
) -> float:
    settings = config.warmup
    recipe = _as_recipe(config, folder)
    lane = Books.in_memory().lane("main")
    tasks = build_tasks(config.tasks, folder, seed=settings.seed, lane=lane)
    trainer = build_trainer(recipe, folder, placement=placement, lane=lane)
    generator = build_generator(GeneratorConfig(), folder, placement=placement, lane=lane)
    try:
        accuracy = 0.0
        for update in range(1, settings.num_updates + 1):
            batch = _demonstrations(tasks, tasks.next_prompts(settings.rows_per_update), settings)
            stats = await trainer.forward_backward(batch)
            await trainer.optim_step()
            if update % settings.eval_every_updates and update < settings.num_updates:
                continue
            await generator.load_weights(trainer.export_weights(), update)
            accuracy = await _accuracy(generator, tasks, settings.max_new_tokens)
            say(f"update {update:5d}  loss {stats.loss:.4f}  greedy accuracy {accuracy:.3f}")
            if settings.stop_between[0] <= accuracy <= settings.stop_between[1]:
                break
        trainer.export_hf(output)
        return accuracy
    finally:
        await generator.close()
        await trainer.close()
        await tasks.close()


def _as_recipe(config: WarmupRecipe, folder: Path) -> Recipe:
    settings = config.warmup
    return Recipe(
        run=RunConfig(
            name="warmup",
            seed=settings.seed,
            num_steps=settings.num_updates,
            num_prompts_per_step=settings.rows_per_update,
            group_size=1,
        ),
        model=ModelConfig(path=str(folder), dtype="float32", device="cpu"),
        tasks=config.tasks,
        sampling=SamplingConfig(max_new_tokens=settings.max_new_tokens),
        algorithm=AlgorithmConfig(loss=ReinforceLoss()),
        trainer=config.trainer,
    )


def _demonstrations(tasks: LocalTasks, prompts: Sequence[Prompt], settings: WarmupConfig) -> Batch:
    """Each prompt with an answer, as if it had been generated and rewarded."""
    groups = []
    for prompt in prompts:
        text = _answer(prompt, settings)
        answer = tasks.tokenizer.encode_prompt(text)
        tokens = np.array([*answer, tasks.stop_token_ids[0]], np.int32)
        zeros = np.zeros(len(tokens), np.float32)
        completion = Completion(
            request_id=prompt.id,
            token_ids=tokens,
            sampled_logprobs=zeros,
            generator_logprobs=zeros,
            version_spans=(VersionSpan(start=0, stop=len(tokens), policy_version=0),),
            finish_reason="stop",
        )
        trajectory = Trajectory(
            id=f"{prompt.id}/answer",
            group_id=prompt.id,
            completions=(completion,),
            text=text,
            outcome=Score(value=1.0),
        )
        groups.append(Group(id=prompt.id, prompt=prompt, trajectories=(trajectory,)))
    batch = build_batch(groups)
    return replace(batch, advantages=batch.loss_mask.astype(np.float32))


def _answer(prompt: Prompt, settings: WarmupConfig) -> str:
    """The right answer, or the question where the draw of this prompt says so."""
    if prompt.payload.get("answer") is None:
        raise DataError(f"{prompt.id} has no answer to learn from; warm up on a task with answers")
    drawn = zlib.crc32(f"{settings.seed}/{prompt.id}".encode()) / 2**32
    return str(prompt.payload["question" if drawn < settings.copy_frac else "answer"])


async def _accuracy(generator: Generator, tasks: Tasks, max_new_tokens: int) -> float:
    params = SamplingParams(
        max_new_tokens=max_new_tokens, temperature=0.0, stop_token_ids=tasks.stop_token_ids
    )
    prompts = tasks.eval_prompts()
    completions = await asyncio.gather(
        *(
            generator.generate(
                GenerationRequest(
                    id=prompt.id,
                    group_id=prompt.id,
                    prompt_token_ids=prompt.token_ids,
                    sampling=params,
                    seed=0,
                )
            )
            for prompt in prompts
        )
    )
    outcomes = await asyncio.gather(
        *(
            tasks.score(
                prompt,
                Trajectory(
                    id=prompt.id,
                    group_id=prompt.id,
                    completions=(completion,),
                    text=tasks.decode(completion.token_ids.tolist()),
                ),
            )
            for prompt, completion in zip(prompts, completions, strict=True)
        )
    )
    scores = [outcome for outcome in outcomes if isinstance(outcome, Score)]
    return sum(map(accuracy_of, scores)) / max(1, len(scores))
