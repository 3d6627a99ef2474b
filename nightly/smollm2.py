"""SmolLM2-135M on sums: greedy accuracy above 0.70 within 10 minutes of training, above 0.85 within 20.

One seed takes about half an hour with its evaluations, so pass them one by one: --seeds 1.
"""

from __future__ import annotations

from nightly._train import Trained, train

__all__ = ["check", "run"]

TASK = "arithmetic_sums"


def run(seed: int) -> dict[str, float]:
    done = train("recipes/smollm2-arithmetic.toml", f"run.seed={seed}", timeout_s=3500)
    accuracies = done.accuracies(TASK)
    return {
        "accuracy_before": accuracies[0][1],
        "accuracy_after": accuracies[-1][1],
        "best_accuracy": max(accuracy for _, accuracy in accuracies),
        "training_s_to_0.70": _training_s_to(done, 0.70),
        "training_s_to_0.85": _training_s_to(done, 0.85),
        "training_s": round(done.training_s(accuracies[-1][0]), 1),
        "seconds_per_step": round(done.training_s(accuracies[-1][0]) / accuracies[-1][0], 2),
        "unaccounted_frac": done.unaccounted_frac(),
        "first_update_s": round(done.first_update_s, 1),
    }


def check(figures: dict[str, float]) -> list[str]:
    problems = []
    for score, minutes in ((0.70, 10), (0.85, 20)):
        seconds = figures[f"training_s_to_{score:.2f}"]
        if not 0 <= seconds <= 60 * minutes:
            problems.append(
                f"accuracy {score} after {seconds} s of training, not within {minutes} minutes"
            )
    return problems


def _training_s_to(done: Trained, score: float) -> float:
    """Training seconds until the first evaluation above `score`; -1 when there was none."""
    for step, accuracy in done.accuracies(TASK):
        if accuracy > score:
            return round(done.training_s(step), 1)
    return -1.0
