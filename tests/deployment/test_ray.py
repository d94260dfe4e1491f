"""On the nodes of a Ray cluster: the same bits as in worker processes, also if a node dies."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lexfed.core.seeds import fresh
from lexfed.deployment.processes import free_port
from tests.conftest import ROOT, Lexfed
from tests.deployment.loopback import left_behind
from tests.deployment.ray_nodes import Cluster, cluster
from tests.parity.test_workers import figures
from tests.unit.test_by_letter import LANGUAGE, QUICK

pytest.importorskip("ray")
SECURE = ("secure.sums=true", "secure.least=2", "cohort.size=4")


def words(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def started(environment: dict[str, str], *arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lexfed.cli", "run", *map(str, arguments)]
    environment = {**environment, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


def ran(nodes: Cluster, *arguments: object, cwd: Path) -> None:
    run = started(nodes.environment, *arguments, "--ray", nodes.address, cwd=cwd)
    _, said = run.communicate(timeout=240)
    assert run.returncode == 0, said
    assert said == ""  # Ray has much to say


@pytest.mark.deployment
def test_one_node_that_is_started_here(tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """FedeVocab, whose clients keep something: it goes to the node and comes back."""
    folder = Path(tempfile.mkdtemp(prefix="lfr-"))  # short: sockets lie in it
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": fresh().hex()}  # nobody else is let in
    environment = {**os.environ, **token, "RAY_TMPDIR": str(folder)}
    few = words("method=fedevocab", "rounds=2", "evaluation.every=0")
    try:
        here = started(environment, tiny, "--out", "ray", "--ray", "local", *few, cwd=tmp_path)
        assert lexfed("run", tiny, "--out", "workers", "--workers", 2, *few).returncode == 0
        _, said = here.communicate(timeout=120)
        assert (here.returncode, said) == (0, "")
    finally:
        here.kill()
        shutil.rmtree(folder)
    assert figures(tmp_path / "ray") == figures(tmp_path / "workers")
    assert left_behind(folder) == []


# --- two nodes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made
    assert left_behind(made.folder) == []


@pytest.mark.deployment
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("method=fedevocab",),
        ("method=local_only", "cohort.lost=0.3", "cohort.stale=0.3"),
        ("method=fedevocab", "evaluation.clients=3", *SECURE),
        ("aggregation.rule=median",),
    ],
    ids=["fedavg", "fedevocab", "local_only", "secure", "median"],
)
def test_the_same_bits(
    settings: tuple[str, ...], nodes: Cluster, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    told = words(*settings)
    assert lexfed("run", tiny, "--out", "workers", "--workers", 2, *told).returncode == 0
    ran(nodes, tiny, "--out", "ray", *told, cwd=tmp_path)
    assert figures(tmp_path / "ray") == figures(tmp_path / "workers")


@pytest.mark.deployment
def test_a_tokenizer_for_free(nodes: Cluster, lexfed: Lexfed, tmp_path: Path) -> None:
    file, told = QUICK / "learned.toml", words(*LANGUAGE)
    assert lexfed("run", file, "--out", "workers", "--workers", 2, *told).returncode == 0
    ran(nodes, file, "--out", "ray", *told, cwd=tmp_path)
    assert figures(tmp_path / "ray") == figures(tmp_path / "workers")


@pytest.mark.deployment
def test_the_recorded_wire(nodes: Cluster, tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    told = words("cohort.lost=0.3")
    wire = ("--record-wire", "wire-workers")
    assert lexfed("run", tiny, "--out", "workers", "--workers", 2, *told, *wire).returncode == 0
    ran(nodes, tiny, "--out", "ray", *told, "--record-wire", "wire-ray", cwd=tmp_path)
    assert figures(tmp_path / "ray") == figures(tmp_path / "workers")
    ours, theirs = (recorded(tmp_path / f"wire-{name}") for name in ("ray", "workers"))
    assert len(ours) > 20
    assert ours == theirs


def recorded(folder: Path) -> dict[str, object]:
    """What lies in the files; the keys of a table have no order."""
    return {
        str(path.relative_to(folder)): (
            json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes()
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.deployment
def test_it_goes_on_where_it_stopped(
    nodes: Cluster, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """Half of it with workers, half on the cluster."""
    told = words("method=fedevocab", "evaluation.every=0")
    assert lexfed("run", tiny, "--out", "whole", *told, *words("rounds=4")).returncode == 0
    assert lexfed("run", tiny, "--out", "half", *told, *words("rounds=2")).returncode == 0
    ran(nodes, "half", "--resume", "--set", "rounds=4", cwd=tmp_path)
    half, whole = figures(tmp_path / "half"), figures(tmp_path / "whole")
    assert half[1:] == whole[1:]


OWN = """
import lexfed
from lexfed.learning.task import plain_update
from lexfed.methods.fedavg import averaged

METHOD = lexfed.Entry(
    "mine", lexfed.CLASSIFIER, lambda parts, options: averaged(parts, plain_update(parts.task))
)
"""


@pytest.mark.deployment
def test_a_method_of_ones_own(nodes: Cluster, tiny: Path, lexfed: Lexfed, tmp_path: Path) -> None:
    """It lies beside the configuration: nodes look there too."""
    folder = tmp_path / "setup"
    folder.mkdir()
    (folder / "own_on_ray.py").write_text(OWN)
    shutil.move(tiny, folder / "own.toml")
    told = words("method=own_on_ray:METHOD")
    result = lexfed("run", folder / "own.toml", "--out", "workers", "--workers", 2, *told)
    assert result.returncode == 0, result.stderr
    ran(nodes, folder / "own.toml", "--out", "ray", *told, cwd=tmp_path)
    assert figures(tmp_path / "ray") == figures(tmp_path / "workers")


@pytest.mark.deployment
def test_auto_is_the_cluster_of_the_environment(nodes: Cluster, tiny: Path, tmp_path: Path) -> None:
    environment = {**nodes.environment, "RAY_ADDRESS": nodes.address}
    run = started(environment, tiny, "--out", "a", "--ray", "auto", cwd=tmp_path)
    assert run.communicate(timeout=120)[1] == ""
    assert run.returncode == 0


@pytest.mark.deployment
def test_what_a_node_lacks_is_one_line(nodes: Cluster, tiny: Path, tmp_path: Path) -> None:
    """The data lie in a folder that only the machine with the run knows."""
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sst2.parquet")
    environment = {**nodes.environment, "LEXFED_DATA": str(tmp_path)}
    there = ("--ray", nodes.address, *words("data.name=sst2"))
    run = started(environment, tiny, "--out", "a", *there, cwd=tmp_path)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 2, said
    assert said.startswith("lexfed: on node ")
    assert said.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.deployment
def test_nobody_waits_for_a_cluster_that_is_not_there(tiny: Path, tmp_path: Path) -> None:
    address, before = f"127.0.0.1:{free_port()}", time.monotonic()
    run = started(dict(os.environ), tiny, "--out", "a", "--ray", address, cwd=tmp_path)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 2
    assert said.startswith(f"lexfed: no Ray cluster answers at {address} within 15 seconds")
    assert said.count("\n") == 1
    assert time.monotonic() - before < 40
    assert not (tmp_path / "a").exists()


# --- one of them is killed ------------------------------------------------------------------------


def rounds(run: Path) -> int:
    file = run / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def until(what: str, holds: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.deployment
@pytest.mark.parametrize("method", ["fedavg", "fedevocab"])
def test_a_lost_nodes_blocks_are_done_again(
    method: str, tiny: Path, lexfed: Lexfed, tmp_path: Path
) -> None:
    """The node is killed, raylet and workers, in the middle of a block."""
    told = words(f"method={method}", "rounds=60", "evaluation.every=0", "cohort.size=6")
    assert lexfed("run", tiny, "--out", "workers", "--workers", 2, *told).returncode == 0
    with cluster() as made:
        run = started(
            made.environment, tiny, "--out", "ray", "--ray", made.address, *told, cwd=tmp_path
        )
        ours = tmp_path / "ray"
        try:
            until("no round came", lambda: rounds(ours) > 1)
            until("the second node got no block", made.nodes[1].freeze)
            time.sleep(1)
            lost = rounds(ours)
            time.sleep(1)
            assert rounds(ours) == lost < 60, "nobody waits for the block"
            made.nodes[1].kill()
            until("it did not go on", lambda: rounds(ours) > lost)
            _, said = run.communicate(timeout=120)
        finally:
            run.kill()
        assert (run.returncode, said) == (0, "")
    assert figures(ours) == figures(tmp_path / "workers")
    assert left_behind(made.folder) == []
