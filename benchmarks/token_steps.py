"""How far step costs of LLMs are from public measurements: `python -m benchmarks.token_steps`, needs HEADROOM_DATA.

Two tables: step costs on measurements that their fit did not see, and the scaled rungs of belief with entries left out.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.library import load_gpu_types, load_llm_library, load_models
from benchmarks.token_fit import StepSamples, fit_steps
from solvers.models.serving.token_library import believed_costs
from solvers.models.serving.tokens import StepCosts

MUXSERVE = ("muxserve-llama-a100", "cost.csv")


def muxserve(data: Path) -> None:
    """Share-dependent step costs: a fifth of the shares and batches is never seen by the fit."""
    groups: dict[tuple[str, str], dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    with data.joinpath(*MUXSERVE).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for phase in ("prefill", "decode"):
                if row[f"{phase}_ms"] and float(row[f"{phase}_ms"]) > 0:
                    cell = [float(row[name]) for name in ("batch", "seq_len", "sm_pct", f"{phase}_ms")]
                    groups[row["model"], row["num_gpus"]][phase].append(tuple(cell))
    print("LLaMA on A100, prefill and decode by SM share, held-out error (%), mean / median")
    rng = np.random.default_rng(7)
    for (model, gpus), phases in sorted(groups.items()):
        held = {phase: rng.random(len(cells)) < 0.2 for phase, cells in phases.items()}
        kept = {phase: _samples(np.array(cells)[~held[phase]]) for phase, cells in phases.items()}
        costs = fit_steps(kept["decode"], kept["prefill"]).costs
        words = []
        for phase in ("decode", "prefill"):
            errors = [
                abs(_told(costs.at_share(share), phase, batch, tokens) / seen - 1)
                for batch, tokens, share, seen in np.array(phases[phase])[held[phase]]
            ]
            words.append(f"{phase} {100 * np.mean(errors):.1f} / {100 * np.median(errors):.1f} ({len(errors)})")
        knees = f"knees {costs.decode_knee_pct:g} and {costs.prefill_knee_pct:g} % of the SMs"
        print(f"  {model} x {gpus}: {', '.join(words)}; {knees}")


def _samples(cells: np.ndarray) -> StepSamples:
    return StepSamples(sequences=cells[:, 0], tokens_each=cells[:, 1], share_pct=cells[:, 2], step_ms=cells[:, 3])


def _told(costs: StepCosts, phase: str, batch: float, tokens: float) -> float:
    if phase == "decode":
        return costs.decode_ms(batch, batch * tokens)
    variable = costs.prefill_per_token_ms + costs.prefill_per_token_squared_ms * tokens
    return costs.prefill_fixed_ms + variable * batch * tokens


def rungs() -> None:
    """The shipped entries: their own held-out errors, and belief with them left out."""
    library = load_llm_library()
    gpu_types = {gpu_type.name: gpu_type for gpu_type in load_gpu_types()}
    models = {model.name: model for model in load_models()}
    decode = [entry.decode_error_pct for entry in library.entries]
    prefill = [entry.prefill_error_pct for entry in library.entries]
    print(f"shipped LLM entries: {len(library.entries)}; unseen fifth of each, median error over entries (%)")
    for phase, errors in (("decode", decode), ("prefill", prefill)):
        print(f"  {phase} {np.median(errors):.1f} (worst {max(errors):.1f})")
    for words, same_model_too in (("another GPU type or number", False), ("size and data sheet alone", True)):
        off: dict[str, list[float]] = {"decode": [], "prefill": []}
        for entry in library.entries:
            rest = tuple(
                other
                for other in library.entries
                if other is not entry and not (same_model_too and other.model == entry.model)
            )
            card, others = gpu_types[entry.gpu_type], replace(library, entries=rest)
            model = models[entry.model]
            asked = replace(model, memory_mib_weights=model.memory_mib_weights / entry.narrower(model))
            told = believed_costs(asked, card, entry.gpus, others, gpu_types).costs
            off["decode"] += [
                math.log(told.decode_ms(n, 1000 * n) / entry.costs.decode_ms(n, 1000 * n)) for n in (1, 8, 32)
            ]
            off["prefill"] += [math.log(told.prefill_ms(n) / entry.costs.prefill_ms(n)) for n in (512, 2048)]
        for phase, logs in off.items():
            usual, spread = math.exp(float(np.median(np.abs(logs)))), math.exp(float(np.std(logs)))
            print(f"  from {words}: {phase} a factor of {usual:.2f} (median), {spread:.2f} (std)")


def main() -> int:
    """Print both."""
    argparse.ArgumentParser(prog="python -m benchmarks.token_steps", description=__doc__).parse_args()
    data = Path(os.environ.get("HEADROOM_DATA", "../shared/data"))
    if not data.joinpath(*MUXSERVE).is_file():
        print(f"there is no {'/'.join(MUXSERVE)} in {data}; set HEADROOM_DATA", file=sys.stderr)
        return 2
    muxserve(data)
    rungs()
    return 0


if __name__ == "__main__":
    sys.exit(main())
