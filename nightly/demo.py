"""The demo's promise, seed by seed: from 0.25-0.45 to above 0.8 within five minutes and 3 GiB."""

from __future__ import annotations

from nightly._train import train

__all__ = ["check", "run"]

TASK = "spell_backward"


def run(seed: int) -> dict[str, float]:
    done = train("recipes/demo.toml", f"run.seed={seed}", timeout_s=900)
    accuracies = done.accuracies(TASK)
    lengths = [row["response_length/mean"] for row in done.rows if "response_length/mean" in row]
    return {
        "accuracy_before": accuracies[0][1],
        "accuracy_after": accuracies[-1][1],
        "mean_completion_tokens": sum(lengths) / len(lengths),
        "wall_s": round(done.wall_s, 1),
        "first_update_s": round(done.first_update_s, 1),
        "peak_resident_gib": round(done.peak_bytes / 2**30, 2),
        "unaccounted_frac": done.unaccounted_frac(),
    }


def check(figures: dict[str, float]) -> list[str]:
    limits = (
        ("accuracy_before", 0.25, 0.45),
        ("accuracy_after", 0.80, 1.0),
        ("mean_completion_tokens", 8, 1e9),
        ("wall_s", 0, 300),
        ("first_update_s", 0, 20),
        ("peak_resident_gib", 0, 3),
        ("unaccounted_frac", 0, 0.01),
    )
    return [
        f"{name} is {figures[name]}, not between {low} and {high}"
        for name, low, high in limits
        if not low <= figures[name] <= high
    ]
