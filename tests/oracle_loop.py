"""One run of the closed loop written straight down, without Controller, context or books.

It shares the roles (generator, trainer, rewards) and nothing of `rledger.loop`: order, seeds, grouping
and the handing of columns are written out again here, and the Controller must equal it bit by bit.
"""

from __future__ import annotations

import asyncio

import numpy as np

from rledger.schedule.seeds import derive_seed
from rledger.types import Batch, GenerationRequest, Score, Trajectory


async def straight_line(roles, recipe, num_steps: int) -> list[str]:
    """Train `num_steps` steps; returns the digest of the weights after each."""
    tasks, generator, trainer, critic = roles.tasks, roles.generator, roles.trainer, roles.critic
    size, digests, admitted = recipe.run.group_size, [], 0
    await generator.load_weights(trainer.export_weights(), 0)
    for step in range(num_steps):
        # generate
        prompts = tasks.next_prompts(recipe.run.num_prompts_per_step)
        params = recipe.sampling.params(tasks.stop_token_ids)
        requests = [
            GenerationRequest(
                id=f"g{admitted + p:08d}/{member}",
                group_id=f"g{admitted + p:08d}",
                prompt_token_ids=prompt.token_ids,
                sampling=params,
                seed=derive_seed(recipe.run.seed, 1, admitted + p, member),
            )
            for p, prompt in enumerate(prompts)
            for member in range(size)
        ]
        admitted += len(prompts)
        completions = await asyncio.gather(*(generator.generate(request) for request in requests))
        # reward
        rewards = []
        for row, (request, completion) in enumerate(zip(requests, completions, strict=True)):
            text = tasks.decode(completion.token_ids.tolist())
            trajectory = Trajectory(
                id=request.id, group_id=request.group_id, completions=(completion,), text=text
            )
            score = await tasks.score(prompts[row // size], trajectory)
            assert isinstance(score, Score), score
            rewards.append(score)
        # columns
        asked = [prompts[row // size].token_ids for row in range(len(requests))]
        rows = [
            np.array([*a, *c.token_ids], np.int32) for a, c in zip(asked, completions, strict=True)
        ]
        batch = Batch(
            ids=tuple(request.id for request in requests),
            group_ids=tuple(request.group_id for request in requests),
            groups=np.arange(len(requests), dtype=np.int32) // size,
            offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
            prompt_lengths=np.array([len(a) for a in asked], np.int32),
            token_ids=np.concatenate(rows),
            loss_mask=np.concatenate(
                [np.arange(len(r)) >= len(a) for a, r in zip(asked, rows, strict=True)]
            ),
            policy_versions=np.concatenate(
                [
                    np.where(np.arange(len(r)) >= len(a), step, -1)
                    for a, r in zip(asked, rows, strict=True)
                ]
            ).astype(np.int32),
            generator_logprobs=np.concatenate(
                [
                    np.r_[np.zeros(len(a)), c.generator_logprobs]
                    for a, c in zip(asked, completions, strict=True)
                ]
            ).astype(np.float32),
            rewards=np.array([score.value for score in rewards], np.float32),
            reward_components={
                name: np.array([score.components[name] for score in rewards], np.float32)
                for name in sorted(rewards[0].components)
            },
            truncated=np.array([c.finish_reason == "length" for c in completions]),
        )
        # log-probabilities, values, advantages
        if recipe.algorithm.resolve_old_logprobs(1) == "recompute":
            batch = await trainer.compute_logprobs(batch)
        if recipe.algorithm.needs_ref_logprobs:
            batch = await trainer.compute_ref_logprobs(batch)
        if critic is not None:
            batch = await critic.compute_values(batch)
        batch, _ = roles.estimator(batch)
        # update
        for model in (critic, trainer):
            if model is not None:
                await model.forward_backward(batch)  # one update a step
                await model.optim_step()
        await generator.load_weights(trainer.export_weights(), trainer.commit())
        digests.append(trainer.weights_digest())
    return digests
