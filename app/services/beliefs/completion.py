"""Snapshots that know something of every workload on every GPU: believed profiles and token profiles beside the
measured ones, and how models press on each other where some were measured together.

Profiles that somebody measured stay as they are. A belief that fails never stops planning: then only what was measured
counts, and the policy's margin stands for neighbours. What was believed is kept while neither the belief nor what was
measured changes. Of LLM steps the shipped library is believed, scaled where it has none of the kind; every time counts
as many standard deviations more than expected as the policy wants, and groups of GPUs are left out: a replica has one
whole GPU.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace

from app import library
from app.library import load_llm_library
from app.logs import EventLog
from app.services.beliefs.beliefs import Belief, Beliefs, source_of
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Interference, Profile, ProfileOrigin, TokenProfile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import ModelVariant, OfflineTask, Service, ServiceMode, SloKind
from solvers.errors import FieldError, HeadroomError, TransientError
from solvers.models.base import Origin
from solvers.models.believed import Asked, alike, completed, interference_of, is_measured
from solvers.models.serving.token_library import believed_costs
from solvers.models.suite import Suite

_DIGITS = 6
_SOURCE_LENGTH_MAX = 256
_ORIGINS = {
    Origin.MEASURED: ProfileOrigin.FITTED,
    Origin.LIBRARY: ProfileOrigin.PUBLIC,
    Origin.SCALED: ProfileOrigin.SCALED,
}


def with_token_profiles(snapshot: Snapshot) -> Snapshot:
    """The snapshot with a profile for every model that answers token by token on every GPU type it may use; none for a
    model that does not say how much cache a token takes, or of a size that no GPU could step through.
    """
    wanted = _wanted(snapshot, tokens=True)
    kept = {(item.model, item.gpu_type): item for item in snapshot.token_profiles if not item.origin.is_believed}
    if not wanted and len(kept) == len(snapshot.token_profiles):
        return snapshot
    models, types = snapshot.models_by_name(), snapshot.gpu_types_by_name()
    # Where an operator's data sheet differs from the shipped one, his counts.
    sheets: dict[str, GpuType] = {item.name: item for item in (*library.load_gpu_types(), *snapshot.gpu_types)}
    for key in wanted:
        model, gpu_type = models.get(key[0]), types.get(key[1])
        if key not in kept and model is not None and gpu_type is not None:
            # Steps that nothing can take are a slip in the model's document, which must not end everybody's plans.
            with suppress(FieldError):
                made = token_profile(model, gpu_type, sheets, snapshot.policy.caution_std)
                kept.update({key: made} if made is not None else {})
    return replace(snapshot, token_profiles=tuple(kept[key] for key in sorted(kept)))


def token_profile(
    model: ModelVariant, gpu_type: GpuType, sheets: dict[str, GpuType], caution_std: float
) -> TokenProfile | None:
    """What is believed of a model's steps on a GPU type, by data sheets of every type; None without a cache per token.
    Raises FieldError for steps that nothing can take.
    """
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


_log = EventLog("headroom.beliefs")
_Key = tuple[ModelName, GpuTypeName]
_Pressing = tuple[Suite, tuple[ModelName, ...], float]
"""What was asked: of whom, about which models, how carefully."""


@dataclass(slots=True)
class _Completed:
    """What was made by one belief: profiles by what was asked, and how models press."""

    belief: Belief
    profiles: dict[_Key, tuple[Asked, Profile | None]] = field(default_factory=dict)
    pressing: dict[GpuTypeName, tuple[_Pressing, dict[ModelName, Interference]]] = field(default_factory=dict)


class Completion:
    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._kept: _Completed | None = None

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with a profile for every model that a service or task may need on every GPU type there is, by
        what is believed now, whatever is still being learned. Raises TransientError when the database cannot be read.
        """
        profiles, types = snapshot.profiles_by_key(), snapshot.gpu_types_by_name()
        wanted = _wanted(snapshot, tokens=False)
        lacking = [key for key in wanted if not is_measured(profiles.get(key), types[key[1]])]
        try:
            made = self._made(snapshot)
            found = {key: _profile_of(made, snapshot, types[key[1]], key[0], profiles.get(key)) for key in lacking}
            profiles.update({key: profile for key, profile in found.items() if profile is not None})
            profiles.update(_pressed(made, snapshot, {key: profiles[key] for key in wanted if key in profiles}))
        except TransientError:
            raise
        except (HeadroomError, ArithmeticError, ValueError) as error:
            _log.warning("beliefs.failed", error)
            return snapshot
        return replace(snapshot, profiles=tuple(profiles[key] for key in sorted(profiles)))

    def _made(self, snapshot: Snapshot) -> _Completed:
        """What was made by the present belief, to be added to; a copy where the picture declares what is not stored."""
        belief, kept = self._beliefs.belief(), self._kept
        if kept is None or kept.belief is not belief:
            # Plans are not to be disturbed by every outcome that moves the third digit.
            kept = self._kept = _Completed(belief, pressing={} if kept is None else kept.pressing.copy())
        declared = belief.declared(snapshot.models, snapshot.gpu_types)
        return kept if declared is belief else _Completed(declared, pressing=kept.pressing.copy())


def _pressed(made: _Completed, snapshot: Snapshot, profiles: dict[_Key, Profile]) -> dict[_Key, Profile]:
    """The profiles that say nothing of neighbours, with what is believed of them."""
    models: dict[GpuTypeName, list[ModelName]] = defaultdict(list)
    for model, gpu_type in sorted(profiles):
        models[gpu_type].append(model)
    suite, caution_std, told = made.belief.suite, snapshot.policy.caution_std, {}
    for gpu_type, names in models.items():
        asked = (suite, tuple(names), caution_std)
        known = made.pressing.get(gpu_type)
        if known is None or known[0][0] is not asked[0] or known[0][1:] != asked[1:]:
            fresh = interference_of(suite, gpu_type, names, caution_std)
            known = (asked, known[1] if known is not None and alike(known[1], fresh) else fresh)
            made.pressing[gpu_type] = known
        for model, found in known[1].items():
            profile = profiles[model, gpu_type]
            if profile.interference is None:
                told[model, gpu_type] = replace(profile, interference=found)
    return told


def _profile_of(
    made: _Completed, snapshot: Snapshot, gpu_type: GpuType, model: ModelName, profile: Profile | None
) -> Profile | None:
    asked = Asked(model=model, gpu_type=gpu_type, profile=profile, policy=snapshot.policy)
    key = (model, gpu_type.name)
    known = made.profiles.get(key)
    if known is None or known[0] != asked:
        found = completed(asked, made.belief.suite.solo, _Words(made.belief).tell)
        known = made.profiles[key] = (asked, found)
    return known[1]


class _Words:
    """Says of each pair once where its belief comes from."""

    def __init__(self, belief: Belief) -> None:
        self._belief = belief
        self._told: dict[tuple[str, str, Origin], str] = {}

    def tell(self, model: str, gpu_type: str, origin: Origin) -> str:
        key = (model, gpu_type, origin)
        if key not in self._told:
            self._told[key] = source_of(self._belief, *key)
        return self._told[key]


def _wanted(snapshot: Snapshot, *, tokens: bool) -> list[_Key]:
    """Models of services and tasks, alternatives included, on the GPU types in the fleet or on offer that they may
    use: of those that answer token by token, which are planned from token profiles, or of the others.
    """
    catalogue = snapshot.gpu_types_by_name()
    present = {device.gpu_type for device in snapshot.devices}
    present |= {offer.gpu_type for offer in snapshot.offers if offer.gpu_type in catalogue}
    works: tuple[Service | OfflineTask, ...] = (*snapshot.services, *snapshot.tasks)
    return sorted(
        {
            (model, name)
            for work in works
            if work.mode is not ServiceMode.OFF and (work.slo.kind is SloKind.TOKENS) is tokens
            for model in (work.model, *(work.alternatives if isinstance(work, Service) else ()))
            for name in (present.intersection(work.gpu_types_allowed) if work.gpu_types_allowed else present)
        }
    )
