"""What is believed of LLM steps, as token profiles in snapshots: the shipped library's entries for the declared
services' models on the GPU types of the fleet, scaled where it has none of the kind.

Owns which models and types are looked at, and the caution: every time counts as many standard deviations more than
expected as the policy wants. Profiles that somebody measured stay as they are. It refuses groups of GPUs: a replica has
one whole GPU.
"""

from __future__ import annotations

from dataclasses import replace

from app import library
from app.library.llm import load_llm_library
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import ProfileOrigin, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, ServiceMode, SloKind
from solvers.models.base import Origin
from solvers.models.serving.token_library import believed_costs

_DIGITS = 6
_SOURCE_LENGTH_MAX = 256
_ORIGINS = {
    Origin.MEASURED: ProfileOrigin.FITTED,
    Origin.LIBRARY: ProfileOrigin.PUBLIC,
    Origin.SCALED: ProfileOrigin.SCALED,
}


def with_token_profiles(snapshot: Snapshot) -> Snapshot:
    """The snapshot with a profile for every model that answers token by token on every GPU type it may use; none for a
    model that does not say how much cache a token takes.
    """
    wanted = _wanted(snapshot)
    kept = {(item.model, item.gpu_type): item for item in snapshot.token_profiles if not item.origin.is_believed}
    if not wanted and len(kept) == len(snapshot.token_profiles):
        return snapshot
    models, types = snapshot.models_by_name(), snapshot.gpu_types_by_name()
    # Where an operator's data sheet differs from the shipped one, his counts.
    sheets: dict[str, GpuType] = {item.name: item for item in (*library.load_gpu_types(), *snapshot.gpu_types)}
    for key in wanted:
        model, gpu_type = models.get(key[0]), types.get(key[1])
        if key not in kept and model is not None and gpu_type is not None:
            made = _believed(model, gpu_type, sheets, snapshot.policy.caution_std)
            kept.update({key: made} if made is not None else {})
    return replace(snapshot, token_profiles=tuple(kept[key] for key in sorted(kept)))


def _wanted(snapshot: Snapshot) -> list[tuple[ModelName, GpuTypeName]]:
    present = {device.gpu_type for device in snapshot.devices} | {offer.gpu_type for offer in snapshot.offers}
    return sorted(
        {
            (model, name)
            for service in snapshot.services
            if service.slo.kind is SloKind.TOKENS and service.mode is not ServiceMode.OFF
            for model in (service.model, *service.alternatives)
            for name in (present.intersection(service.gpu_types_allowed) if service.gpu_types_allowed else present)
        }
    )


def _believed(
    model: ModelVariant, gpu_type: GpuType, sheets: dict[str, GpuType], caution_std: float
) -> TokenProfile | None:
    if model.kv_cache_mib_per_token is None:
        return None
    found = believed_costs(model, gpu_type, 1, load_llm_library(), sheets)
    costs, careful = found.costs.at_share(100), 1 + caution_std * found.spread

    def told(time_ms: float) -> float:
        return round(time_ms * careful, _DIGITS)

    return TokenProfile(
        model=model.name,
        gpu_type=gpu_type.name,
        decode_fixed_ms=max(told(costs.decode_fixed_ms), 10**-_DIGITS),
        decode_per_sequence_ms=told(costs.decode_per_sequence_ms),
        # Of a token it is less than a digit that others are rounded to.
        decode_per_token_ms=costs.decode_per_token_ms * careful,
        prefill_fixed_ms=told(costs.prefill_fixed_ms),
        prefill_per_token_ms=told(costs.prefill_per_token_ms),
        prefill_per_token_squared_ms=costs.prefill_per_token_squared_ms * careful,
        memory_mib_weights=model.memory_mib_weights,
        kv_cache_mib_per_token=model.kv_cache_mib_per_token,
        origin=_ORIGINS[found.origin],
        source=found.source[:_SOURCE_LENGTH_MAX],
    )
