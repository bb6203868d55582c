"""Snapshots that know something of every workload on every GPU: believed profiles beside the measured ones.

Owns which models and GPU types are looked at and that a belief which fails never stops planning: then only what was
measured counts. What was believed of a pair is kept while neither the belief nor what was measured of it changes.
"""

from __future__ import annotations

from dataclasses import replace

from app.logs import EventLog
from app.services.beliefs import Belief, Beliefs, source_of
from solvers.domain.device import GpuType
from solvers.domain.ids import GpuTypeName, ModelName
from solvers.domain.profile import Profile
from solvers.domain.snapshot import Snapshot
from solvers.domain.workload import OfflineTask, Service, ServiceMode
from solvers.errors import HeadroomError, TransientError
from solvers.models.base import Origin
from solvers.models.believed import Asked, completed, is_measured

_log = EventLog("headroom.beliefs")
_Key = tuple[ModelName, GpuTypeName]


class Completion:
    """Completes snapshots with what is believed."""

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        self._belief: Belief | None = None
        self._known: dict[_Key, tuple[Asked, Profile | None]] = {}

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with a profile for every model that a service or task may need on every GPU type there is.

        Raises TransientError when the database cannot be read, or while what was measured is learned for the first
        time: a plan from less would soon be undone.
        """
        profiles = snapshot.profiles_by_key()
        wanted = [key for key in _wanted(snapshot) if not is_measured(profiles.get(key))]
        if not wanted:
            return snapshot
        try:
            found = self._completed(snapshot, wanted, profiles)
        except TransientError:
            raise
        except (HeadroomError, ArithmeticError, ValueError) as error:
            _log.warning("beliefs.failed", error)
            return snapshot
        profiles.update({key: profile for key, profile in found.items() if profile is not None})
        return replace(snapshot, profiles=tuple(profiles[key] for key in sorted(profiles)))

    def _completed(
        self, snapshot: Snapshot, wanted: list[_Key], profiles: dict[_Key, Profile]
    ) -> dict[_Key, Profile | None]:
        belief = self._beliefs.settled()
        if belief is not self._belief:
            self._belief, self._known = belief, {}
        types = snapshot.gpu_types_by_name()
        return {key: self._one(belief, snapshot, types[key[1]], (key[0], profiles.get(key))) for key in wanted}

    def _one(
        self, belief: Belief, snapshot: Snapshot, gpu_type: GpuType, of: tuple[ModelName, Profile | None]
    ) -> Profile | None:
        model, profile = of
        asked = Asked(model=model, gpu_type=gpu_type, profile=profile, policy=snapshot.policy)
        key = (model, gpu_type.name)
        known = self._known.get(key)
        if known is None or known[0] != asked:
            made = completed(asked, belief.suite.solo, _Words(belief).tell)
            known = self._known[key] = (asked, made)
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


def _wanted(snapshot: Snapshot) -> list[_Key]:
    """Models of services and tasks, and known alternatives, on the GPU types in the fleet or on offer that they may
    use.
    """
    catalogue, models = snapshot.gpu_types_by_name(), snapshot.models_by_name()
    offered = {offer.gpu_type for offer in snapshot.offers if offer.gpu_type in catalogue}
    present = {device.gpu_type for device in snapshot.devices} | offered
    works: tuple[Service | OfflineTask, ...] = (*snapshot.services, *snapshot.tasks)
    return sorted(
        {
            (model, name)
            for work in works
            if work.mode is not ServiceMode.OFF
            for model in (work.model, *(item for item in _alternatives(work) if item in models))
            for name in (present.intersection(work.gpu_types_allowed) if work.gpu_types_allowed else present)
        }
    )


def _alternatives(work: Service | OfflineTask) -> tuple[ModelName, ...]:
    return work.alternatives if isinstance(work, Service) else ()
