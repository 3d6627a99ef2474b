"""Small random models of each family, their transformers twins, and an engine driven by hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import transformers

from rledger.books import Books
from rledger.config.generator import GeneratorConfig
from rledger.generator.engine import Engine
from rledger.generator.kv_cache import block_bytes
from rledger.models.decoder import Decoder
from rledger.models.names import export_hf_state, load_hf_state
from rledger.models.placement import Placement
from rledger.modelspec import spec_from_config
from rledger.types import Completion, GenerationRequest, SamplingParams

FAMILIES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
VOCAB_SIZE = 97


@lru_cache(maxsize=8)
def twin(family: str = "llama", seed: int = 0, tied: bool = True) -> Any:
    """A transformers model in float32, with logits spread enough that sampling matters."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(seed)
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16 if family == "qwen3" else 8,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    return model_class(config).eval()


def decoder_of(model: Any, dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(spec_from_config(model.config.to_dict()), dtype=dtype)
    wanted = export_hf_state(decoder)
    load_hf_state(decoder, {k: v for k, v in model.state_dict().items() if k in wanted})
    return decoder


def placement(dtype: torch.dtype = torch.float32, threads: int = 1) -> Placement:
    return Placement(device=torch.device("cpu"), compute_dtype=dtype, threads=threads)


def budget(decoder: Decoder, num_blocks: int) -> int:
    """Bytes of a cache of so many blocks, the null block among them."""
    return num_blocks * block_bytes(decoder.spec, decoder.dtype)


def engine_of(
    decoder: Decoder,
    *,
    books: Books | None = None,
    max_running: int = 16,
    kv_cache_bytes: int = 2**24,
    chunk: int = 64,
    deterministic: bool = False,
    threads: int = 1,
    decode: Any = None,
    version: int = 0,
) -> Engine:
    engine = Engine(
        decoder.spec,
        GeneratorConfig(
            max_running_requests=max_running,
            kv_cache_bytes=kv_cache_bytes,
            prefill_chunk_tokens=chunk,
        ),
        placement=placement(decoder.dtype, threads),
        lane=(books or Books.in_memory()).lane("main"),
        decode=decode,
        deterministic=deterministic,
    )
    engine.load_weights(export_hf_state(decoder), version)
    return engine


def request(
    number: int,
    prompt: tuple[int, ...],
    *,
    group: str | None = None,
    seed: int | None = None,
    **sampling: Any,
) -> GenerationRequest:
    sampling.setdefault("max_new_tokens", 8)
    return GenerationRequest(
        id=f"r{number}",
        group_id=group or f"g{number}",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),
        seed=number if seed is None else seed,
    )


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    source = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=source).tolist())


def finish(engine: Engine, max_steps: int = 10_000) -> dict[str, Completion]:
    """Step until nothing is left; completions by request id."""
    done: dict[str, Completion] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return done
        done.update((s.request.id, s.completion()) for s in engine.step())
    raise AssertionError("the engine does not come to an end")
