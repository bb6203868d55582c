"""LLM services of rolling scenarios, out of public traces and rate tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.arena import loading
from lab.arena.loading import Document
from lab.benches.rolling.scenario import (
    ChatForm,
    MuxserveForm,
    TracedForm,
    muxserve_services,
    together,
    traced_services,
)
from solvers.errors import InputError


def document(data: Path) -> Document:
    path = data / "mine.yaml"
    path.write_text("kind: rolling\nmuxserve:\n  condense: 7\n", encoding="utf-8")
    return loading.read(path, data)


def write(data: Path, folder: str, name: str, text: str) -> None:
    (data / folder).mkdir()
    (data / folder / name).write_text(text, encoding="utf-8")


def test_requests_become_services_by_length_and_rare_ones_are_left_out(tmp_path: Path) -> None:
    rows = [(at, 100, 10) for at in range(20)] + [(5, 9000, 10), (20, 100, 10)]
    text = "t_s,in_tokens,out_tokens,prefix_blocks\n" + "".join(f"{at},{length},{out},1\n" for at, length, out in rows)
    write(tmp_path, "mooncake-conversation", "conversation.csv", text)
    form = TracedForm(
        name="long",
        trace="mooncake",
        model="llama-3.1-8b",
        scale=2.0,
        bin=10.0,
        input_edges=(1000,),
        first_token_ms=500.0,
        inter_token_ms=50.0,
        rate_rps_least=0.2,
    )
    services = traced_services(form, ("traced", 0), document(tmp_path))
    assert [(each.name, each.input_tokens, each.rates_rps) for each in services] == [
        ("long-in-0-out-0", 100.0, (2.0, 2.0)),
    ]


def test_services_of_a_table_have_its_rates_and_the_models_that_the_form_knows(tmp_path: Path) -> None:
    text = "condense,service,model,rate_rps\n7,llm-1,llama-13b,4.0\n7,llm-2,llama-65b,1.0\n9,llm-1,llama-13b,8.0\n"
    write(tmp_path, "muxserve-lmsys-rates", "rates.csv", text)
    known = {"llama-13b": "llama-2-13b"}
    form = MuxserveForm(condense=7, models=known, loads=(0.5, 1.0), first_token_ms=500.0, inter_token_ms=50.0)
    services = muxserve_services(form, ("muxserve",), document(tmp_path))
    assert [(each.name, each.model, each.rates_rps) for each in services] == [("llm-1", "llama-2-13b", (2.0, 4.0))]
    with pytest.raises(InputError, match="there are only 7, 9"):
        muxserve_services(form.model_copy(update={"condense": 8}), ("muxserve",), document(tmp_path))


def test_traces_of_different_length_end_together() -> None:
    def service(*rates_rps: float) -> ChatForm:
        return ChatForm(
            name="a",
            model="m",
            first_token_ms=1.0,
            inter_token_ms=1.0,
            input_tokens=1.0,
            output_tokens=1.0,
            rates_rps=rates_rps,
        )

    assert [each.rates_rps for each in together([service(1.0, 2.0), service(3.0)])] == [(1.0,), (3.0,)]
    assert together([]) == []
