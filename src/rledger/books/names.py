"""Every metric that RLedger writes, under the name that people have dashboards for if there is one.

Means are over the things named in the description; seconds are of host spans unless said otherwise.
"""

from __future__ import annotations

from rledger.books.metrics import Metric, Reduction, Registry
from rledger.books.records import DropReason

__all__ = ["METRICS"]


def _spread(prefix: str, unit: str, what: str, stats: str = "mean max min") -> list[Metric]:
    """`prefix`/mean, /max, /min (and /std) of one quantity."""
    reductions: dict[str, Reduction] = {"mean": "mean", "max": "max", "min": "min", "std": "mean"}
    words = {"mean": "Mean", "max": "Largest", "min": "Smallest", "std": "Standard deviation of"}
    return [
        Metric(f"{prefix}/{stat}", unit, reductions[stat], f"{words[stat]} {what}")
        for stat in stats.split()
    ]


_TIME = [
    Metric("timing_s/step", "s", "sum", "Wall time of the step without the stage testing"),
    Metric("timing_s/{stage}", "s", "sum", "Time in the stage's spans, children included"),
    Metric(
        "timing_per_token_ms/{stage}",
        "ms/token",
        "mean",
        "1000 x timing_s / tokens: response tokens for gen, prompt + response tokens for others",
    ),
    Metric("time/unaccounted_s", "s", "sum", "Time inside the step that no stage covers"),
    Metric("time/unaccounted_frac", "1", "mean", "time/unaccounted_s over the step's wall time"),
    Metric("time/process_cpu_s", "s", "sum", "CPU time of this process in the step, all threads"),
    Metric("time/elapsed_s", "s", "sum", "From the end of the step before to the end of this one"),
    Metric("time/books_s", "s", "sum", "Time spent in the books during the step, self-booked"),
]

_PERF = [
    Metric(
        "perf/total_num_tokens",
        "tokens",
        "sum",
        "Prompt + response tokens of all rows; a prompt counts once a row",
    ),
    Metric("perf/time_per_step", "s", "sum", "Wall time of the step without the stage testing"),
    Metric(
        "perf/throughput",
        "tokens/s/device",
        "mean",
        "perf/total_num_tokens / (perf/time_per_step x devices); prompts count, validation not",
    ),
    Metric(
        "perf/mfu/{role}",
        "1",
        "mean",
        "FLOPs of 6 x parameters x tokens + attention over update time x peak; the peak is the"
        " device's, on a CPU the measured matmul rate. Prompt tokens count as if trained on",
    ),
    *[
        Metric(
            f"perf/{over}{kind}_tokens_per_s",
            "tokens/s",
            "mean",
            f"{meaning} per second of {denominator}",
        )
        for over, denominator in (
            ("", "the step's wall time without testing"),
            ("elapsed/", "elapsed time: step, validation, checkpoint and all between"),
        )
        for kind, meaning in (
            ("generated", "Generated tokens"),
            ("trained", "Tokens with loss_mask 1 in a committed step"),
            ("useful", "Trained tokens not rejected by a correction, with an advantage not zero"),
        )
    ],
    Metric("perf/{stage}_flops", "FLOP", "sum", "FLOPs of the stage, by formula"),
    Metric("perf/{stage}_flops_per_s", "FLOP/s", "mean", "FLOPs of the stage over its time"),
    Metric("perf/{stage}_bytes", "bytes", "sum", "Least bytes that the stage moves, by formula"),
    Metric("perf/cpu_memory_used_gb", "GB", "max", "Largest resident memory of the process so far"),
    Metric("perf/max_memory_allocated_gb", "GB", "max", "Device memory allocated, largest so far"),
    Metric("perf/max_memory_reserved_gb", "GB", "max", "Device memory reserved, largest so far"),
]

_DATA = [
    Metric("training/global_step", "1", "last", "Step"),
    Metric("training/epoch", "1", "last", "Passes over the training prompts so far"),
    Metric("data/num_groups_admitted", "groups", "sum", "Groups admitted in the step"),
    Metric("data/num_groups_trained", "groups", "sum", "Groups trained on in the step"),
    *[
        Metric(f"data/num_groups_dropped/{r}", "groups", "sum", f"Groups dropped: {r}")
        for r in DropReason
    ],
    Metric("data/num_failed_trajectories", "trajectories", "sum", "Trajectories without a reward"),
    Metric("data/num_failed_trajectories/{reason}", "trajectories", "sum", "The same, by reason"),
    Metric("data/generated_tokens", "tokens", "sum", "Tokens generated in the step"),
    Metric("data/trained_tokens", "tokens", "sum", "Tokens with loss_mask 1 in the committed step"),
    Metric("data/useful_tokens", "tokens", "sum", "Trained, not rejected, advantage not zero"),
    Metric("data/prompt_tokens", "tokens", "sum", "Prompt tokens, a prompt counted once a row"),
    Metric("data/unique_prompt_tokens", "tokens", "sum", "Prompt tokens, each prompt counted once"),
    Metric("data/padding_frac", "1", "mean", "Padding tokens over computed tokens of the update"),
    Metric("data/zero_signal_group_frac", "1", "mean", "Groups whose rewards are all equal"),
]

_LENGTHS = [
    *_spread("response_length", "tokens", "generated length of a trajectory"),
    Metric("response_length/clip_ratio", "1", "mean", "Share that the length limit ended"),
    *_spread("response_length_non_aborted", "tokens", "generated length, aborted ones apart"),
    Metric("response_length_non_aborted/clip_ratio", "1", "mean", "Share the length limit ended"),
    Metric("response/aborted_ratio", "1", "mean", "Share of trajectories that were aborted"),
    *_spread("prompt_length", "tokens", "prompt length of a trajectory"),
    Metric("prompt_length/clip_ratio", "1", "mean", "Share of prompts at the length limit"),
    *_spread("num_turns", "turns", "turns of a trajectory"),
    *_spread("global_seqlen", "tokens", "tokens of a rank's share"),
]

_REWARDS = [
    *_spread("critic/score", "reward", "reward of a trajectory, before KL and shaping"),
    *_spread("critic/rewards", "reward", "reward of a trajectory, after KL and shaping"),
    *_spread("critic/advantages", "1", "advantage of a token"),
    *_spread("critic/returns", "reward", "return of a token"),
    *_spread("critic/values", "reward", "value of a token"),
    Metric(
        "critic/vf_explained_var", "1", "mean", "1 - Var(return - value) / (Var(return) + 1e-5)"
    ),
    Metric("reward/{component}/mean", "reward", "mean", "Mean of one component of the reward"),
    Metric("reward/{component}/std", "reward", "mean", "Standard deviation of the component"),
    Metric("gdpo/{component}/mean", "reward", "mean", "Mean of a component that GDPO normalises"),
    Metric("gdpo/{component}/std", "reward", "mean", "Its standard deviation"),
    Metric("gdpo/{component}/max", "reward", "max", "Its largest value"),
    Metric("gdpo/{component}/min", "reward", "min", "Its smallest value"),
]

_LEARNING = [
    Metric("actor/loss", "1", "mean", "Whole loss of the update, as differentiated"),
    Metric("actor/pg_loss", "1", "mean", "Policy loss"),
    Metric("actor/pg_clipfrac", "1", "mean", "Share of tokens whose ratio was clipped"),
    Metric("actor/pg_clipfrac_lower", "1", "mean", "Share of tokens at the dual clip"),
    Metric("actor/ppo_kl", "nats", "mean", "Mean of old_logprobs - logprobs over trained tokens"),
    Metric("actor/pg_covfrac", "1", "mean", "Share of tokens picked for their covariance"),
    Metric("actor/ratio/mean", "1", "mean", "Mean of the policy ratio over trained tokens"),
    Metric("actor/ratio/max", "1", "max", "Largest policy ratio"),
    Metric("actor/ratio/min", "1", "min", "Smallest policy ratio"),
    Metric("actor/entropy", "nats", "mean", "Entropy of the policy over trained tokens"),
    Metric("actor/entropy_loss", "1", "mean", "Entropy as it stands in the loss"),
    Metric("actor/kl_loss", "nats", "mean", "KL to the reference in the loss, coefficient apart"),
    Metric("actor/kl_coef", "1", "last", "Coefficient of the KL in the loss"),
    Metric("actor/reward_kl_penalty", "nats", "mean", "KL to the reference taken off the reward"),
    Metric("actor/reward_kl_penalty_coeff", "1", "last", "Coefficient of that KL"),
    Metric("actor/grad_norm", "1", "mean", "Norm of the policy's gradient before clipping"),
    Metric("actor/lr", "1", "last", "Learning rate of the policy"),
    Metric("actor/num_micro_batches", "1", "sum", "Micro-batches of the step"),
    Metric("actor/rejected_frac", "1", "mean", "Trained tokens whose gradient was rejected"),
    Metric("critic/loss", "1", "mean", "Whole loss of the critic"),
    Metric("critic/vf_loss", "1", "mean", "Value loss"),
    Metric("critic/vf_clipfrac", "1", "mean", "Share of tokens whose value was clipped"),
    Metric("critic/vpred_mean", "reward", "mean", "Mean of the predicted values"),
    Metric("critic/grad_norm", "1", "mean", "Norm of the critic's gradient before clipping"),
    Metric("critic/lr", "1", "last", "Learning rate of the critic"),
    Metric("critic/num_micro_batches", "1", "sum", "Micro-batches of the critic's step"),
]

_OFF_POLICY = [
    Metric("training/rollout_probs_diff_valid", "1", "min", "1 when the comparison was made"),
    Metric(
        "training/rollout_probs_diff_mean", "1", "mean", "|generator's - trainer's probability|"
    ),
    Metric("training/rollout_probs_diff_max", "1", "max", "Largest such difference"),
    Metric("training/rollout_probs_diff_std", "1", "mean", "Its standard deviation"),
    Metric("training/rollout_actor_probs_pearson_corr", "1", "mean", "Their correlation"),
    *_spread("training/off_policy/policy_age", "versions", "age of a trained token at the take"),
    *_spread("training/off_policy/trajectory_spans", "versions", "versions in one trajectory"),
    Metric("rollout_corr/{name}", "1", "mean", "Diagnostics of the correction, see rledger.algo"),
]

_EVALUATION = [
    Metric(
        "val-core/{task}/acc/{stat...}",
        "1",
        "mean",
        "Accuracy on the held-out prompts: mean@N, pass@N, best@N/mean, maj@N/mean",
    ),
    Metric(
        "val-aux/{task}/{name...}",
        "1",
        "mean",
        "Other figures of the evaluation: /ci_low and /ci_high are the ends of a bootstrap interval"
        " over prompts",
    ),
]

METRICS = Registry(
    [
        *_TIME,
        *_PERF,
        *_DATA,
        *_LENGTHS,
        *_REWARDS,
        *_LEARNING,
        *_OFF_POLICY,
        *_EVALUATION,
    ]
)
