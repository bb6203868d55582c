"""Other systems' inputs, with invented numbers: the queue model, scenario files, what greedy rules do, snapshots."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.instances import openb, parvagpu
from benchmarks.instances.inferno import greedy, inferno
from benchmarks.instances.melange import melange_slices
from benchmarks.instances.rented import inferno_snapshot, melange_snapshot
from benchmarks.sources.rows import SourceMissingError
from lab.benches.rolling.problems import InfernoCase, QueueReplica, Targets, rate_rps
from solvers.domain.codec import canonical_json, from_json
from solvers.domain.snapshot import Snapshot

REPLICA = QueueReplica(alpha=10.0, beta=0.05, gamma=0.0002, batch_max=32, tokens_in=128, tokens_out=256)
LOOSE = Targets(first_token_ms=5000, inter_token_ms=500)


def test_a_tighter_target_lowers_the_rate_until_there_is_none() -> None:
    rates = [rate_rps(REPLICA, replace(LOOSE, inter_token_ms=limit)) for limit in (500.0, 13.0, 11.5, 1.0)]
    assert rates[-1] is None
    found = [rate for rate in rates if rate is not None]
    assert len(found) == 3
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.2 * found[-1]


def test_a_larger_batch_serves_more_and_a_batch_of_one_is_not_sized() -> None:
    small, large = (rate_rps(replace(REPLICA, batch_max=batch), LOOSE) for batch in (8, 32))
    assert small is not None
    assert large is not None
    assert large > 2 * small
    assert rate_rps(replace(REPLICA, batch_max=1), LOOSE) is None


def sample(folder: Path) -> Path:
    """Two classes, one model, two accelerators, one of them also in gangs of two."""
    files = {
        "accelerator": {
            "accelerators": [
                {"name": "A", "type": "A", "multiplicity": 1, "cost": 10.0},
                {"name": "B", "type": "B", "multiplicity": 1, "cost": 30.0},
                {"name": "2xB", "type": "B", "multiplicity": 2, "cost": 60.0},
            ]
        },
        "capacity": {"count": [{"type": "A", "count": 6}, {"type": "B", "count": 8}]},
        "model": {
            "models": [
                {
                    "name": "m", "acc": name, "accCount": 1, "maxBatchSize": 32, "atTokens": 256,
                    "perfParms": {"alpha": alpha, "beta": 0.05, "gamma": 0.0002},
                }
                for name, alpha in (("A", 20.0), ("B", 8.0), ("2xB", 5.0))
            ]
        },
        "serviceclass": {
            "serviceClasses": [
                {"name": name, "priority": priority, "modelTargets": [{"model": "m", "slo-itl": 200, "slo-ttft": 3000}]}
                for name, priority in (("Premium", 1), ("Free", 3))
            ]
        },
        "server": {
            "servers": [
                {
                    "name": f"{name}-m", "class": name, "model": "m",
                    "currentAlloc": {"load": {"arrivalRate": 900, "AvgInTokens": 128, "AvgOutTokens": 256}},
                }
                for name in ("Premium", "Free")
            ]
        },
    }  # fmt: skip
    where = folder / "inferno-sample" / "large"
    where.mkdir(parents=True)
    for name, content in files.items():
        (where / f"{name}-data.json").write_text(json.dumps(content))
    return folder


def test_a_sample_is_read_and_its_greedy_rule_keeps_to_the_units(tmp_path: Path) -> None:
    case = inferno(sample(tmp_path), InfernoCase())
    problem = case.covers
    assert problem.option_units.tolist() == [1, 1, 2] * 2
    assert (problem.unserved_usd[0], problem.unserved_usd[1]) == (3e5, 1e5)
    counts = greedy(case)
    assert problem.feasible(counts)
    assert problem.served(counts)[0], "the first priority is served first"
    more = inferno(tmp_path, InfernoCase(copies=3, capacity=0.5))
    assert len(more.services) == 6
    assert more.covers.units.tolist() == [9, 12]
    assert (more.covers.demand < 15).all()
    snapshot = inferno_snapshot(case, "sample")
    assert {offer.gpu_type: offer.count_max for offer in snapshot.offers} == {"a": 6, "b": 8}
    assert from_json(Snapshot, canonical_json(snapshot)) == snapshot


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SourceMissingError, match="HEADROOM_DATA"):
        inferno(tmp_path, InfernoCase())


def test_scenarios_of_any_file_become_snapshots(tmp_path: Path) -> None:
    folder = tmp_path / parvagpu.FOLDER
    folder.mkdir()
    (folder / "profile.csv").write_text(
        "model,mig_gpcs,batch,mps_procs,throughput_per_proc_img_s,latency_ms\n"
        "a,1,4,1,100,30\na,1,8,1,110,60\na,7,8,2,400,15\na,7,16,2,,\nb,3,4,1,200,20\n"
    )
    latency, rate = tmp_path / "slo.csv", tmp_path / "rps.csv"
    latency.write_text("80,50\nN/A,50\n")
    rate.write_text("500,150\nN/A,350\n")
    files = parvagpu.Files(latency=latency, rate=rate)
    with pytest.raises(SourceMissingError, match="none is number 3"):
        parvagpu.scenario(3, ("a", "b"), files)
    snapshot = parvagpu.parvagpu_snapshot(tmp_path, 1, 4, files)
    assert [service.slo.latency_ms for service in snapshot.services] == [36.0, 22.5]


def test_pods_that_ask_for_the_same_are_one_service(tmp_path: Path) -> None:
    folder = tmp_path / openb.FOLDER
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn-0,1,1,2,T4\nn-1,1,1,8,G2\n"
    )
    (folder / "openb_pod_list_default.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
        "p0,1,1,1,460,\np1,1,1,1,460,\np2,1,1,8,1000,G2|T4|G2\np3,1,1,0,0,\n"
    )
    snapshot = openb.openb_snapshot(tmp_path)
    assert len(snapshot.devices) == 10
    shared, whole = sorted(snapshot.services, key=lambda item: item.replicas_min)
    assert (shared.replicas_min, shared.affinity.dedicated) == (2, False)
    assert (whole.replicas_min, whole.affinity.dedicated, whole.gpu_types_allowed) == (8, True, ("g2", "t4"))
    assert from_json(Snapshot, canonical_json(snapshot)) == snapshot


def test_drawn_problems_are_the_same_every_time_and_become_snapshots() -> None:
    problem = melange_slices(16, 4, 2, 30.0, 3)
    assert np.array_equal(problem.load, melange_slices(16, 4, 2, 30.0, 3).load)
    assert np.isinf(problem.load).any()
    assert np.isfinite(problem.load).any(axis=1).all()
    snapshot = melange_snapshot(problem, "buckets")
    assert len(snapshot.services) == 16
    assert from_json(Snapshot, canonical_json(snapshot)) == snapshot
