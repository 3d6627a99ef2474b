"""Write the results into benchmarks/README.md, between its markers.

    python -m benchmarks.readme

A test fails when the page and the result files say different things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS

__all__ = ["README", "main", "render"]

README = Path(__file__).parent / "README.md"


def render(text: str, results: Path = RESULTS) -> str:
    """The page with every marked part made again from the result files."""

    def part(match: re.Match[str]) -> str:
        name = match["name"]
        found = [json.loads(p.read_text("utf-8")) for p in sorted(results.glob(f"{name}-*.json"))]
        lines = [line for result in found for line in [*_SECTIONS[name](result), ""]]
        body = "\n".join(lines).strip() or "Not measured yet."
        return f"<!-- {name} -->\n{body}\n<!-- end -->"

    return re.sub(r"<!-- (?P<name>\w+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def _span(found: dict[str, float], digits: int = 1) -> str:
    return (
        f"**{found['median']:.{digits}f}** ({found['min']:.{digits}f} to {found['max']:.{digits}f})"
    )


def _where(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"{machine['cpu']} (family/model {machine['cpu_family_model']}), {machine['cores']} cores,"
        f" {machine['memory_gib']} GiB; {result['date']}, commit {result['commit'][:7]}"
    )


def _grpo_step(result: dict[str, Any]) -> Iterator[str]:
    work, settings = result["workload"], result["sides"]["trl"]["settings"]
    yield f"{_where(result)}; {work['rounds']} rounds in turns, {work['threads']} threads."
    searched = (
        "its best setting" if result["trl_settings_tried"] else "one setting, not searched for"
    )
    yield (
        f"TRL {result['sides']['trl']['versions']['trl']} at {searched}:"
        f" {settings['precision']}, micro-batch {settings['micro_batch']}."
    )
    yield ""
    yield "| | ours | TRL | ours is so many times faster (extremes of the rounds) |"
    yield "| --- | --- | --- | --- |"
    rates, ratios = result["trained_tokens_per_s"], result["ratio"]
    yield (
        f"| trained tokens/s | {rates['ours']['median']:.0f} | {rates['trl']['median']:.0f} |"
        f" {_span(ratios['trained_tokens_per_s'])} |"
    )
    for label, key, name in (
        ("generation, s", "generation_s", "generation"),
        ("update, s", "update_s", "update"),
    ):
        ours, trl = result[key]["ours"]["median"], result[key]["trl"]["median"]
        yield f"| {label} | {ours:.2f} | {trl:.2f} | {_span(ratios[name])} |"
    tried = result["trl_settings_tried"]
    if tried:
        listed = ", ".join(
            f"{t['precision']} {t['micro_batch']}: {t['step_s']:.0f} s"
            for t in sorted(tried, key=lambda t: t["step_s"])
        )
        yield ""
        yield f"TRL's settings tried (one step each): {listed}."


_NAMES = {
    "ours": "ours",
    "ours_deterministic": "ours, deterministic",
    "transformers": "transformers `generate`",
    "vllm": "vLLM (CPU), compiled",
    "vllm_eager": "vLLM (CPU), eager",
}


def _generation(result: dict[str, Any]) -> Iterator[str]:
    work, bound, rates = result["workload"], result["bound"], result["rates"]
    yield f"{_where(result)}; {work['rounds']} rounds in turns, {work['threads']} threads."
    yield ""
    yield "| | tok/s | of the bound | start-up, s | ours is so many times faster |"
    yield "| --- | --- | --- | --- | --- |"
    for name, speed in result["tokens_per_s"].items():
        side = result["sides"][name]
        told = f" ({', '.join(f'{k} {v}' for k, v in side['versions'].items())})"
        if name == "transformers":
            told = f"{told[:-1]}; {side['settings']['dtype']}, batch {side['settings']['batch']})"
        found = _span(result["ratio"][name], 2) if name in result["ratio"] else ""
        yield (
            f"| {_NAMES[name]}{'' if name.startswith('ours') else told} | {speed['median']:.0f} |"
            f" {speed['median'] / bound['tokens_per_s']:.0%} | {side['start_up_s']:.0f} | {found} |"
        )
    yield ""
    yield (
        f"The bound is {bound['tokens_per_s']:.0f} tok/s: {bound['flops'] / 1e12:.2f} TFLOP at the"
        f" measured {rates['flops_per_s'] / 1e9:.0f} GFLOP/s take {bound['compute_s']:.1f} s,"
        f" {bound['bytes'] / 2**30:.0f} GiB of weights and cache at the measured"
        f" {rates['bytes_per_s'] / 2**30:.0f} GiB/s take {bound['memory_s']:.1f} s. Products of"
        f" {rates['rows']} rows, as decoding has them, reach"
        f" {rates['flops_per_s_at_rows'] / 1e9:.0f} GFLOP/s. ({rates['instrument']})"
    )


def _time_to_score(result: dict[str, Any]) -> Iterator[str]:
    work = result["workload"]
    yield (
        f"{_where(result)}; {work['threads']} threads, evaluated every"
        f" {work['eval_every_steps']} steps."
    )
    for entry in result["trl"]:
        settings = entry["settings"]
        yield (
            f"TRL, seed {entry['seed']}: {entry['date']}, {settings['precision']}, micro-batch"
            f" {settings['micro_batch']}, {entry['curve'][-1]['step']} steps."
        )
    yield ""
    yield "| greedy accuracy above | ours, s of training (per seed) | TRL | ours is so many times faster |"
    yield "| --- | --- | --- | --- |"
    for limit, by_side in result["seconds_to"].items():
        told = {
            side: ", ".join("not reached" if s is None else f"{s:.0f}" for s in seconds)
            for side, seconds in by_side.items()
        }
        found = _span(result["ratio"][limit]) if limit in result["ratio"] else ""
        yield f"| {limit} | {told['ours']} | {told['trl']} | {found} |"


_SECTIONS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "grpo_step": _grpo_step,
    "generation": _generation,
    "time_to_score": _time_to_score,
}


def main() -> None:
    README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
