"""The decoder against transformers, on small random models of each family."""

from __future__ import annotations

import pytest
import torch
from model_oracles import VARIANTS, oracle, ours, packed

from rledger.errors import ModelError
from rledger.models.decoder import Decoder
from rledger.models.init import random_decoder
from rledger.models.names import export_hf_state


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_equal_transformers(variant: str) -> None:
    model = oracle(variant)
    decoder = ours(model)
    lengths = [1, 50, 13]
    token_ids = torch.randint(97, (sum(lengths),))
    positions = torch.cat([torch.arange(n) for n in lengths])
    expected = torch.cat([model(row[None]).logits[0] for row in token_ids.split(lengths)])
    logits = decoder.logits(decoder.forward_hidden(token_ids, positions, packed(lengths)))
    assert (logits - expected).abs().max() < 1e-4
    assert expected.std() > 0.1  # else the comparison would say nothing

    expected.square().mean().backward()
    logits.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    mine = Decoder(decoder.spec)
    for parameter, source in zip(mine.parameters(), decoder.parameters(), strict=True):
        parameter.data = source.grad
    for name, gradient in export_hf_state(mine).items():
        assert torch.allclose(gradient, gradients[name], rtol=1e-3, atol=1e-5), name


def test_recomputing_activations_changes_no_gradient() -> None:
    decoder = ours(oracle("qwen3"))
    token_ids, positions = torch.randint(97, (40,)), torch.arange(40)
    gradients = []
    for recompute in (False, True):
        decoder.checkpoint_activations = recompute
        decoder.zero_grad()
        hidden = decoder.forward_hidden(token_ids, positions, packed([40]))
        decoder.logits(hidden).square().mean().backward()
        gradients.append([p.grad.clone() for p in decoder.parameters()])
    assert all(torch.equal(plain, again) for plain, again in zip(*gradients, strict=True))


def test_hidden_states_are_the_same_with_and_without_gradients() -> None:
    decoder = ours(oracle("qwen2"))
    token_ids, positions = torch.randint(97, (30,)), torch.arange(30)
    recorded = decoder.forward_hidden(token_ids, positions, packed([30]))
    with torch.inference_mode():
        assert torch.equal(decoder.forward_hidden(token_ids, positions, packed([30])), recorded)


def test_sequences_laid_end_to_end_do_not_see_each_other() -> None:
    decoder = ours(oracle("llama"))
    token_ids = torch.randint(97, (24,))
    positions = torch.cat([torch.arange(10), torch.arange(14)])
    with torch.no_grad():
        both = decoder.forward_hidden(token_ids, positions, packed([10, 14]))
        second = decoder.forward_hidden(token_ids[10:], positions[10:], packed([14]))
    assert torch.allclose(both[10:], second, atol=1e-5)


def test_tied_head_is_the_embedding() -> None:
    tied, untied = ours(oracle("llama tied")), ours(oracle("llama"))
    assert tied.lm_head_weight is tied.embedding
    assert untied.lm_head_weight is not untied.embedding
    assert sum(p.numel() for p in tied.parameters()) == tied.spec.num_parameters()
    assert sum(p.numel() for p in untied.parameters()) == untied.spec.num_parameters()


def test_critic_has_values_and_no_logits() -> None:
    spec = ours(oracle("llama")).spec
    critic = random_decoder(spec, seed=1, value_head=True)
    hidden = torch.randn(5, spec.width)
    assert critic.values(hidden).shape == (5,)
    assert sum(p.numel() for p in critic.parameters()) == spec.num_parameters(value_head=True)
    with pytest.raises(ModelError, match="critic"):
        critic.logits(hidden)
    with pytest.raises(ModelError, match="value head"):
        random_decoder(spec, seed=1).values(hidden)


def test_random_weights_depend_on_the_seed_alone() -> None:
    spec = ours(oracle("llama")).spec
    first, again, other = (export_hf_state(random_decoder(spec, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
