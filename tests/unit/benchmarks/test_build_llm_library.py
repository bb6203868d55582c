"""What of the public measurements of LLMs is read, and what of it is shipped."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import build_llm_library
from benchmarks.build_llm_library import AIC_MODELS, aiconfigurator, build
from solvers.domain.codec import from_json
from solvers.models.serving.token_library import LlmLibrary

COLUMNS = (
    "model_path", "system", "backend", "backend_version", "gemm_quant_mode", "pp_size", "attention_dp_size", "tp_size",
    "batch_size", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms",
)  # fmt: skip
MODEL = next(iter(AIC_MODELS))


def measured(folder: Path, divided: str, wild: float = 1.0) -> Path:
    """A table of one model whose attention is `divided`; every second time between tokens is `wild` times too long."""
    path = folder / "aiconfigurator-silicon" / "aggregated.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number, batch in enumerate((1, 2, 4, 8, 16, 32, 64) * 3):
            prompt = (500, 1000, 2000)[number // 7]
            between = (8.0 + 0.05 * batch + 0.00001 * batch * prompt) * (wild if number % 2 else 1.0)
            told = (batch, prompt, 500, 30.0 + 0.02 * prompt, between)
            writer.writerow((MODEL, "h100_sxm", "vllm", "1", "fp8", 1, divided, 1, *told))
    return folder


@pytest.mark.parametrize(("divided", "read"), [("", 1), ("1", 1), ("4", 0), ("0", 0)])
def test_a_blank_means_that_attention_is_not_divided(tmp_path: Path, divided: str, read: int) -> None:
    entries = list(aiconfigurator(measured(tmp_path, divided)))
    assert [(entry.model, entry.gpus) for entry in entries] == [(AIC_MODELS[MODEL], 1)] * read


def test_fits_that_are_far_off_are_told_and_not_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("splitwise", "helix"):
        monkeypatch.setattr(f"benchmarks.build_llm_library.{other}", lambda _: iter(()))
    assert len(build(measured(tmp_path, "")).entries) == 1
    assert capsys.readouterr().out == ""
    with pytest.raises(Exception, match="no LLM measurement"):
        build(measured(tmp_path, "", wild=30.0))
    assert capsys.readouterr().out.startswith(f"left out: {AIC_MODELS[MODEL]} on 1 h100")


def test_the_command_writes_the_file_and_tells_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_llm_library, "TARGET", tmp_path)
    monkeypatch.setenv("HEADROOM_DATA", str(tmp_path))
    assert build_llm_library.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "HEADROOM_DATA" in said.err
    assert not (tmp_path / "llm.json").exists()
    for other in ("splitwise", "helix"):
        monkeypatch.setattr(build_llm_library, other, lambda _: iter(()))
    assert build_llm_library.main([]) == 2
    measured(tmp_path, "")
    assert build_llm_library.main([]) == 0
    assert from_json(LlmLibrary, (tmp_path / "llm.json").read_bytes()) == build(tmp_path)
