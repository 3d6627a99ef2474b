"""What can be found wrong before anything is created or loaded."""

from __future__ import annotations

from rledger.config.recipe import Recipe
from rledger.config.resolve import check_positions
from rledger.errors import ConfigError, ModelError
from rledger.modelspec import load_spec

__all__ = ["check_start", "check_vocabulary"]


def check_start(recipe: Recipe) -> None:
    """The model folder's description, and whether the recipe's sequences fit it.

    Raises ModelError for a folder that is missing or foreign, ConfigError for sequences that are
    too long.
    """
    problem = check_positions(recipe, load_spec(recipe.model.path).max_positions)
    if problem is not None:
        raise ConfigError(problem)


def check_vocabulary(recipe: Recipe, num_tokens: int) -> None:
    """Raises ModelError where the tokenizer knows tokens that the model has no embedding for."""
    size = load_spec(recipe.model.path).vocab_size
    if num_tokens > size:
        raise ModelError(
            f"{recipe.model.path}/tokenizer.json knows {num_tokens} tokens, but config.json gives the"
            f" model a vocab_size of {size}; use the tokenizer that belongs to these weights"
        )
