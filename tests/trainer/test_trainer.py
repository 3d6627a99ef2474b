"""The trainer against transformers, against itself cut differently, and against bad numbers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from batches import SPEC, VOCAB, gradients, make_batch, make_trainer, update

from rledger.books import Books, SpanRecord
from rledger.books.names import METRICS
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.policy_loss import ReinforceLoss
from rledger.config.trainer import OptimizerConfig
from rledger.errors import CheckpointError, DataError, ModelError, NonFiniteError
from rledger.models.checkpoint import load_decoder
from rledger.models.names import export_hf_state, to_hf
from rledger.schedule.packing import split_updates

MIXED = [(5, [7, 3, 6]), (1, [4, 4]), (9, [1]), (4, [12, 2, 2, 5]), (3, [9])]
KL_AND_ENTROPY = AlgorithmConfig.model_validate(
    {"kl": {"type": "loss", "estimator": "k3", "coef": 0.1}, "entropy_coef": 0.05}
)


def assert_close(found, expected, tolerance: float = 1e-5) -> None:
    """Tensor by tensor, relative to its norm. The norms are float32 even in a float64 model."""
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= tolerance * gradient.norm(), name


def hugging_face(trainer, critic: bool = False):
    config = transformers.LlamaConfig(
        **{k: v for k, v in SPEC.to_config("float32").items() if k not in ("model_type", "dtype")}
    )
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(config)
    state = {k: v.clone() for k, v in trainer.export_weights().items()}
    missing = model.load_state_dict(state, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys
    return model


def padded_logits(model, batch, temperature: float):
    """[B, longest, V] log-probabilities and the token at each place, as a padded peer does it."""
    rows = [
        torch.from_numpy(batch.token_ids[a:b].astype(np.int64))
        for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    ]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    attention = torch.nn.utils.rnn.pad_sequence(
        [torch.ones_like(r) for r in rows], batch_first=True
    )
    logits = model(input_ids=ids, attention_mask=attention).logits / temperature
    return torch.log_softmax(logits[:, :-1].double(), -1), ids[:, 1:]


def as_column(batch, padded):
    """[T] of a padded [B, longest - 1] that speaks of tokens 1, 2, ..."""
    parts = [
        torch.cat([padded.new_zeros(1), row[: int(n) - 1]])
        for row, n in zip(padded, batch.lengths, strict=True)
    ]
    return torch.cat(parts)


def test_logprobs_entropy_and_gradients_equal_transformers() -> None:
    batch = make_batch(MIXED)
    algorithm = AlgorithmConfig(loss=ReinforceLoss(), entropy_coef=0.05)
    trainer = make_trainer(algorithm=algorithm, temperature=0.8)
    model = hugging_face(trainer)
    logs, targets = padded_logits(model, batch, 0.8)
    expected = as_column(batch, logs.gather(2, targets[..., None])[..., 0])
    entropies = as_column(batch, -(logs.exp() * logs).sum(-1))
    mask = torch.from_numpy(batch.loss_mask)

    found = asyncio.run(trainer.compute_logprobs(batch)).old_logprobs
    assert np.abs(found - (expected * mask).detach().numpy()).max() < 1e-4
    assert expected[mask].std() > 0.5  # else the comparison would say nothing

    advantages = torch.from_numpy(batch.advantages).double()
    losses = -(advantages * expected + 0.05 * entropies)[mask]
    (losses.sum() / mask.sum()).backward()
    stats = asyncio.run(trainer.forward_backward(batch))
    assert stats.loss == pytest.approx(float(losses.detach().mean()), rel=1e-4)
    assert stats.metrics["actor/entropy"] == pytest.approx(
        float(entropies.detach()[mask].mean()), rel=1e-4
    )
    mine = to_hf(SPEC, trainer._weights.grads)
    for name, parameter in model.named_parameters():
        difference = (mine[name] - parameter.grad).norm()
        assert difference < 1e-3 * parameter.grad.norm(), name


def test_values_and_their_gradient_equal_a_padded_model() -> None:
    batch = make_batch(MIXED)
    trainer = make_trainer(critic=True, algorithm=AlgorithmConfig(value_clip=None))
    exported = {k: v.clone() for k, v in trainer.export_weights().items()}
    head = exported.pop("score.weight"), exported.pop("score.bias")
    config = transformers.LlamaConfig(
        **{k: v for k, v in SPEC.to_config("float32").items() if k not in ("model_type", "dtype")}
    )
    model = transformers.LlamaModel(config)
    model.load_state_dict({k.removeprefix("model."): v for k, v in exported.items()})
    values = []
    for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[a:b].astype(np.int64))[None]
        states = model(input_ids=ids).last_hidden_state[0]
        row = (states @ head[0].t() + head[1])[:-1, 0]
        values.append(torch.cat([row.new_zeros(1), row]))
    expected = torch.cat(values)
    mask = torch.from_numpy(batch.loss_mask)
    found = asyncio.run(trainer.compute_values(batch)).values
    assert np.abs(found - (expected * mask).detach().numpy()).max() < 1e-4
    returns = torch.from_numpy(batch.returns)
    (0.5 * (expected - returns)[mask].square().mean()).backward()
    mine = to_hf(SPEC, gradients(trainer, batch))
    for name, parameter in model.named_parameters():
        assert (mine[f"model.{name}"] - parameter.grad).norm() < 1e-3 * parameter.grad.norm(), name


@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum"])
def test_the_gradient_does_not_depend_on_the_micro_batching(critic: bool, aggregation: str) -> None:
    batch = make_batch(MIXED)
    algorithm = KL_AND_ENTROPY.model_copy(update={"aggregation": aggregation})
    found = [
        gradients(
            make_trainer(
                critic=critic,
                algorithm=algorithm,
                micro_batch_tokens=budget,
                dtype=torch.float64,
                activation_checkpointing=budget == 9,
            ),
            batch,
        )
        for budget in (10_000, 30, 9, 1)
    ]
    for other in found[1:]:
        assert_close(other, found[0])


def test_a_shared_prompt_gives_what_separate_rows_give() -> None:
    batch = make_batch(MIXED)
    apart = replace(batch, groups=np.arange(batch.num_rows, dtype=np.int32))
    trainer = make_trainer(dtype=torch.float64, algorithm=KL_AND_ENTROPY)
    together, separately = gradients(trainer, batch), gradients(trainer, apart)
    assert_close(separately, together)


def test_without_old_logprobs_the_ratio_is_one() -> None:
    batch = make_batch(MIXED)
    trainer = make_trainer(dtype=torch.float64)
    none = gradients(trainer, replace(batch, old_logprobs=None))
    own = gradients(trainer, asyncio.run(trainer.compute_logprobs(batch)))
    assert_close(own, none)
    stats = asyncio.run(trainer.forward_backward(replace(batch, old_logprobs=None)))
    assert stats.metrics["actor/ppo_kl"] == 0.0
    assert stats.metrics["actor/pg_clipfrac"] == 0.0


def test_bfloat16_gradients_point_where_float32_gradients_do() -> None:
    batch = replace(make_batch(MIXED), old_logprobs=None)
    exact = gradients(make_trainer(), batch)
    rounded = gradients(make_trainer(dtype=torch.bfloat16), batch)
    for name, gradient in exact.items():
        cosine = torch.cosine_similarity(gradient.flatten(), rounded[name].flatten(), dim=0)
        assert cosine > 0.99, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_runs_have_the_same_bits(dtype: torch.dtype) -> None:
    digests = []
    for _ in range(2):
        trainer = make_trainer(dtype=dtype, micro_batch_tokens=30)
        for seed in range(3):
            update(trainer, make_batch(MIXED, seed=seed))
        digests.append(trainer.weights_digest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resumed_equals_uninterrupted_bit_by_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    optimizer = OptimizerConfig(
        learning_rate=1e-2, schedule="cosine", warmup_updates=2, weight_decay=0.1
    )
    batches = [make_batch(MIXED, seed=seed) for seed in range(5)]
    straight = make_trainer(dtype=dtype, optimizer=optimizer, num_updates=5)
    for batch in batches:
        update(straight, batch)
        straight.commit()
    first = make_trainer(dtype=dtype, optimizer=optimizer, num_updates=5)
    for batch in batches[:3]:
        update(first, batch)
        first.commit()
    first.save(tmp_path)
    resumed = make_trainer(dtype=dtype, optimizer=optimizer, num_updates=5, seed=99)
    assert resumed.weights_digest() != first.weights_digest()
    resumed.load(tmp_path)
    assert resumed.weights_digest() == first.weights_digest()
    assert resumed.policy_version == 3
    for batch in batches[3:]:
        update(resumed, batch)
        resumed.commit()
    assert resumed.policy_version == 5
    for name, master in straight._weights.masters.items():
        assert torch.equal(resumed._weights.masters[name], master), name
    assert resumed.weights_digest() == straight.weights_digest()


def test_a_checkpoint_of_another_model_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.save(tmp_path)
    before = trainer.weights_digest()
    other = make_trainer(spec=replace(SPEC, ffn_width=64))
    with pytest.raises(CheckpointError, match=r"down_proj.* \(32, 48\) there"):
        other.load(tmp_path)
    content = (tmp_path / "weights.safetensors").read_bytes()
    (tmp_path / "weights.safetensors").write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match="earlier checkpoint"):
        trainer.load(tmp_path)
    assert trainer.weights_digest() == before


def test_transformers_loads_what_is_exported(tmp_path: Path) -> None:
    trainer = make_trainer(optimizer=OptimizerConfig(learning_rate=0.1))
    update(trainer, make_batch(MIXED))
    trainer.export_hf(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.randint(0, VOCAB, (1, 10))
    loaded = load_decoder(tmp_path / "model")
    assert torch.equal(loaded.embedding, model.model.embed_tokens.weight)
    for name, tensor in export_hf_state(loaded).items():
        assert torch.equal(tensor, trainer.export_weights()[name])
    assert model(ids).logits.isfinite().all()


def test_a_loss_that_is_not_finite_names_the_trajectory_and_changes_no_weight() -> None:
    batch = make_batch(MIXED)
    advantages = batch.advantages.copy()
    row = batch.ids.index("g00000003/2")
    advantages[batch.offsets[row + 1] - 1] = np.inf
    trainer = make_trainer(micro_batch_tokens=20)
    before = trainer.weights_digest()
    with pytest.raises(NonFiniteError, match=r"loss of the policy .* g00000003/2\."):
        asyncio.run(trainer.forward_backward(replace(batch, advantages=advantages)))
    assert trainer.weights_digest() == before
    reference = make_trainer(micro_batch_tokens=20)
    update(reference, batch)
    update(trainer, batch)  # nothing of the bad update is left behind
    assert trainer.weights_digest() == reference.weights_digest()


def test_a_gradient_that_is_not_finite_names_the_trajectory_and_changes_no_weight() -> None:
    batch = make_batch(MIXED)
    row = batch.ids.index("g00000001/1")
    start, stop = batch.offsets[row], batch.offsets[row + 1]
    culprit = batch.token_ids[start:stop]
    tokens = batch.token_ids.copy()
    tokens[tokens == 96] = 0
    tokens[start + 1] = 96  # a token that no other row has
    assert len(culprit) == 5
    batch = replace(batch, token_ids=tokens)
    trainer = make_trainer(micro_batch_tokens=25)
    before = trainer.weights_digest()

    original = trainer._accumulate

    def accumulate(part, packed, normaliser, number):
        result = original(part, packed, normaliser, number)
        if 96 in packed.token_ids:
            trainer._weights.grads["layers.0.mlp_norm.weight"][0] = torch.inf
        return result

    trainer._accumulate = accumulate  # type: ignore[method-assign]
    asyncio.run(trainer.forward_backward(batch))
    with pytest.raises(NonFiniteError, match=r"gradient of the policy .* g00000001/1\."):
        asyncio.run(trainer.optim_step())
    assert trainer.weights_digest() == before


def test_clipping_scales_the_gradient_to_the_norm() -> None:
    batch = make_batch(MIXED)
    plain = OptimizerConfig(learning_rate=1e-2, max_grad_norm=None, eps=1.0)
    free = make_trainer(optimizer=plain)
    _, step = update(free, batch)
    clipped = make_trainer(
        optimizer=plain.model_copy(update={"max_grad_norm": step.grad_norm / 10})
    )
    start = {name: master.clone() for name, master in clipped._weights.masters.items()}
    _, again = update(clipped, batch)
    assert again.grad_norm == step.grad_norm
    # with a large eps the first AdamW step is nearly proportional to the gradient
    moved = [
        sum(float((w.masters[name] - start[name]).norm() ** 2) for name in start) ** 0.5
        for w in (free._weights, clipped._weights)
    ]
    assert moved[0] / moved[1] == pytest.approx(10, rel=0.05)


def test_adamw_equals_torch_and_decays_matrices_alone() -> None:
    batch = make_batch(MIXED)
    optimizer = OptimizerConfig(learning_rate=1e-2, weight_decay=0.3, max_grad_norm=None)
    trainer = make_trainer(optimizer=optimizer)
    theirs = {n: m.clone().requires_grad_() for n, m in trainer._weights.masters.items()}
    peer = torch.optim.AdamW(
        [
            {"params": [p for p in theirs.values() if p.dim() == 2], "weight_decay": 0.3},
            {"params": [p for p in theirs.values() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    for seed in range(3):
        batch = make_batch(MIXED, seed=seed)
        asyncio.run(trainer.forward_backward(batch))
        trainer._weights.share_gradient()
        for name, parameter in theirs.items():
            parameter.grad = trainer._weights.grads[name].clone()
        asyncio.run(trainer.optim_step())
        peer.step()
    for name, parameter in theirs.items():
        assert torch.allclose(trainer._weights.masters[name], parameter, atol=1e-6), name


def test_masters_keep_what_bfloat16_would_round_away() -> None:
    trainer = make_trainer(dtype=torch.bfloat16, optimizer=OptimizerConfig(learning_rate=1e-7))
    start = {name: master.clone() for name, master in trainer._weights.masters.items()}
    update(trainer, make_batch(MIXED))
    moved = sum(int((m != start[n]).sum()) for n, m in trainer._weights.masters.items())
    assert moved > 0.9 * sum(m.numel() for m in start.values())
    assert trainer._weights.masters["embedding"].dtype == torch.float32
    exported = trainer.export_weights()["model.embed_tokens.weight"]
    assert torch.equal(exported, trainer._weights.masters["embedding"].bfloat16())


def test_the_reference_is_frozen_and_asked_for() -> None:
    batch = make_batch(MIXED)
    with pytest.raises(ModelError, match=r"algorithm\.kl"):
        asyncio.run(make_trainer().compute_ref_logprobs(batch))
    trainer = make_trainer(reference=True, algorithm=KL_AND_ENTROPY)
    before = asyncio.run(trainer.compute_ref_logprobs(batch)).ref_logprobs
    own = asyncio.run(trainer.compute_logprobs(batch)).old_logprobs
    update(trainer, batch)
    assert np.array_equal(asyncio.run(trainer.compute_ref_logprobs(batch)).ref_logprobs, before)
    assert not np.array_equal(own, before)
    assert not before[~batch.loss_mask].any()


def test_stats_count_what_was_computed_and_metrics_are_declared() -> None:
    batch = make_batch([*MIXED, (4, [0, 3])])
    books = Books.in_memory()
    trainer = make_trainer(micro_batch_tokens=30, algorithm=KL_AND_ENTROPY, books=books)
    stats, step = update(trainer, batch)
    empty = "g00000005/0"
    assert sorted(stats.row_ids) == sorted(set(batch.ids) - {empty})
    assert stats.num_loss_tokens == batch.num_loss_tokens
    assert stats.metrics["actor/num_micro_batches"] == stats.num_micro_batches > 1
    for name in stats.metrics:
        METRICS.find(name)
    assert {"actor/pg_loss", "actor/kl_loss", "actor/entropy_loss"} <= set(stats.metrics)
    assert step.learning_rate == 1e-3
    spans = [r for r in books.records if isinstance(r, SpanRecord)]
    forward = [s for s in spans if s.name == "forward"]
    assert len(forward) == stats.num_micro_batches
    assert sum(s.counts["flops"] for s in forward) > 0
    loss_tokens = sum(s.counts["loss_tokens"] for s in spans if s.name == "logprobs")
    assert loss_tokens == batch.num_loss_tokens
    inner = {"layout", "forward", "logprobs", "loss", "backward"}
    assert {s.name for s in spans} == inner | {"pack", "grad_norm", "optimizer"}


@pytest.mark.parametrize("budget", [10_000, 15])
def test_mismatch_metrics_equal_whole_columns(budget: int) -> None:
    batch = replace(make_batch(MIXED), old_logprobs=None)
    trainer = make_trainer(micro_batch_tokens=budget, dtype=torch.float64)
    ours = asyncio.run(trainer.compute_logprobs(batch)).old_logprobs[batch.loss_mask]
    theirs = batch.generator_logprobs[batch.loss_mask]
    p, q = np.exp(theirs.astype(float)), np.exp(ours.astype(float))
    metrics = asyncio.run(trainer.forward_backward(batch)).metrics
    difference = np.abs(p - q)
    prefix = "training/rollout_probs_diff"
    for name, expected in (
        (f"{prefix}_mean", difference.mean()),
        (f"{prefix}_max", difference.max()),
        (f"{prefix}_std", difference.std()),
        ("training/rollout_actor_probs_pearson_corr", np.corrcoef(p, q)[0, 1]),
        ("rollout_corr/kl", (theirs - ours).mean()),
    ):
        assert metrics[name] == pytest.approx(expected, rel=1e-4), name


def test_an_update_without_a_trained_token_is_refused() -> None:
    with pytest.raises(DataError, match="no token"):
        asyncio.run(make_trainer().forward_backward(make_batch([(3, [0, 0])])))


def test_several_updates_divide_the_step() -> None:
    batch = make_batch(MIXED)
    trainer = make_trainer()
    for part in split_updates(batch, 2):
        stats, _ = update(trainer, part)
        assert set(stats.row_ids) == set(part.ids)
    assert trainer.commit() == 1


def test_groups_without_advantage_are_measured_and_have_no_backward_pass() -> None:
    batch = replace(make_batch(MIXED), old_logprobs=None)
    advantages = np.where(np.repeat(batch.groups, batch.lengths) % 2 == 0, batch.advantages, 0.0)
    batch = replace(batch, advantages=advantages.astype(np.float32))
    books = Books.in_memory()
    trainer = make_trainer(books=books)
    stats = asyncio.run(trainer.forward_backward(batch))
    assert sorted(stats.row_ids) == sorted(batch.ids)
    names = [r.name for r in books.records if isinstance(r, SpanRecord)]
    assert names.count("forward") == 2
    assert names.count("backward") == 1
    trainer._weights.share_gradient()

    # with a loss that may look across the micro-batch nothing is set apart
    together = make_trainer()
    together._pack_update = together._pack  # type: ignore[method-assign]
    whole = asyncio.run(together.forward_backward(batch))
    together._weights.share_gradient()
    assert_close(trainer._weights.grads, together._weights.grads)
    for name, number in whole.metrics.items():
        if name != "actor/num_micro_batches":
            assert stats.metrics[name] == pytest.approx(number, rel=1e-4, abs=1e-7), name


def test_a_term_besides_the_advantage_keeps_the_backward_pass() -> None:
    batch = make_batch(MIXED)
    batch = replace(batch, advantages=np.zeros_like(batch.advantages))
    for algorithm, has_gradient in ((AlgorithmConfig(), False), (KL_AND_ENTROPY, True)):
        found = gradients(make_trainer(algorithm=algorithm), batch)
        assert any(bool(grad.any()) for grad in found.values()) == has_gradient
