"""Predictions: what-if questions about any configuration, as JSON or CSV; nothing is stored."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from app.api.answers import answer
from app.api.body import parse, read_body, require_media_type
from app.api.deps import services_of
from app.api.openapi import json_body, request_body
from app.api.progress import BELIEF_HEADER, belief_header
from app.api.rules import SharedReader
from app.services.beliefs.predictions import Prediction, PredictionQuery

router = APIRouter(tags=["predictions"])
JSON, CSV = "application/json", "text/csv"
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {CSV: {"schema": {"type": "string"}}},
        "description": "In the form in which it was asked.",
        "headers": BELIEF_HEADER,
    }
}
_QUERY = json_body(PredictionQuery)["requestBody"]["content"][JSON]["schema"]
_BODY = request_body(
    {
        JSON: {"schema": {"type": "array", "items": _QUERY}},
        CSV: {
            "schema": {
                "type": "string",
                "description": "A header row, then one question in each row: model, gpu_type, batch, share_pct_sm, "
                "clock_mhz_sm, or gpu_type, model_a, batch_a, share_pct_a, model_b, batch_b, share_pct_b.",
            }
        },
    }
)


@router.post(
    "/v1/predictions",
    operation_id="predict",
    summary="Ask what is believed",
    response_model=list[Prediction],
    responses=_ANSWERS,
    openapi_extra=_BODY,
)
def predict(request: Request, actor: SharedReader, body: bytes = Depends(read_body)) -> Any:  # noqa: ARG001 - the actor is the guard
    """One answer for each question, in their order: mean, standard deviation, where it comes from and how far the
    question lies from anything that was seen. CSV is answered as CSV.
    """
    predictions = services_of(request).predictions
    if require_media_type(request, JSON, CSV) == CSV:
        text = predictions.answer_csv(body)
        return Response(text.what, media_type=CSV, headers=belief_header(text.progress))
    found = predictions.answer(parse(tuple[PredictionQuery, ...], body))
    return answer(found.what, headers=belief_header(found.progress))
