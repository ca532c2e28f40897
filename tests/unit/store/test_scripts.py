"""Lua scripts declare their keys, and read the fields of streams by name."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.store import Store
from services.store.keys import (
    CHAINS,
    CHANGES,
    DATASET_NAMES,
    DATASETS,
    OPEN_CHAINS,
    PATTERNS,
    POOL_PARTS,
    RUN_PARTS,
    named_key,
    pool_key,
    responses_key,
    run_key,
    sessions_key,
)
from services.store.scripts import COMMON, FOLDER, parsed_script, read_scripts
from tests.integration.store.servers import DURABLE, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"), 0, *DURABLE)
    server.wait()
    yield server
    server.kill()


@pytest.fixture
def redis(server: Server) -> Iterator[Any]:
    with server.client() as client:
        client.flushall()
        yield client


def test_a_key_that_no_pattern_describes_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match=r"commit\.lua names the key lineage, which is not in"):
        parsed_script("commit", "-- KEYS run lineage\nreturn 1\n", "")


def test_a_script_that_declares_no_keys_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match=r"commit\.lua has no line `-- KEYS"):
        parsed_script("commit", "-- A script.\nreturn 1\n", "")


def test_a_name_belongs_to_one_script(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "end.lua").write_text("-- KEYS run\nreturn 1\n")
    with pytest.raises(ValueError, match="two Lua scripts are called end"):
        read_scripts(tmp_path)


def test_every_common_file_is_loaded() -> None:
    assert {path.name for path in (FOLDER / "common").iterdir()} == {f"{n}.lua" for n in COMMON}


@pytest.mark.parametrize("name", sorted(read_scripts()))
def test_a_script_uses_exactly_its_declared_keys(name: str) -> None:
    (path,) = Path(str(FOLDER)).glob(f"*/{name}.lua")
    code = re.sub(r"--.*|'[^']*'", "", path.read_text())
    local = set(re.findall(r"\w+", " ".join(re.findall(r"(?:local|for) ([\w, ]+)", code))))
    script = read_scripts()[name]
    declared, local = set(script.keys), local | set(script.arguments)
    assert not re.search("ARGV", code), "arguments have names"
    assert set(script.arguments) <= set(re.findall(r"\w+", code)), "declared and not used"
    used = set(re.findall(r"(?<![.\w])[a-z_]+(?!\w)", code)) & PATTERNS.keys()
    assert declared - used == set(), "declared and not used"
    assert used - declared - local == set(), "used and not declared"


def test_the_names_of_a_keys_line_are_variables_with_these_keys(redis: Any) -> None:
    script = parsed_script(
        "x", "-- KEYS run groups\n-- KEYS plans\nreturn {plans, run, groups}", ""
    )
    keys = [PATTERNS[key].format(run="r1") for key in script.keys]
    found = redis.eval(script.text, len(keys), *keys)
    assert found == [run_key("r1", part).encode() for part in ("plans", "run", "groups")]


def test_the_names_of_an_argv_line_are_variables_and_its_last_may_be_a_list(redis: Any) -> None:
    script = parsed_script(
        "x", "-- KEYS run\n-- ARGV first ids...\nreturn {first, #ids, ids[2]}", ""
    )
    assert script.arguments == ("first", "ids")
    assert redis.eval(script.text, 1, "k", "a", "b", "c") == [b"a", 2, b"c"]
    assert redis.eval(script.text, 1, "k", "a", *map(str, range(20_000)))[1] == 20_000


def test_an_argument_with_the_name_of_a_key_is_refused_at_load() -> None:
    with pytest.raises(ValueError, match=r"commit\.lua has two variables of one name"):
        parsed_script("commit", "-- KEYS run plans\n-- ARGV token plans\nreturn 1\n", "")


async def test_a_script_that_takes_no_further_keys_refuses_them(server: Server) -> None:
    store = Store.from_url(f"redis://127.0.0.1:{server.port}/0")
    with pytest.raises(ValueError, match=r"renew\.lua takes no further keys"):
        await store.runs._scripts.run("renew", [1], more=["k"], run="r1", deadlines="attempts")
    await store.close()


async def test_groups_are_committed_and_requeued_by_the_names_of_their_fields(
    server: Server, redis: Any
) -> None:
    redis.hset(run_key("r1", "run"), mapping={"fencing_token": 1, "kind": "rl", "lineage": "a"})
    redis.xgroup_create(run_key("r1", "groups"), "learner", "0", mkstream=True)

    def add(task: str) -> str:
        # Another order than complete.lua has, and a field that this version does not know.
        fields = {"passed": "0.5", "new": "x", "row": "7", "lineage": "a", "min_version": "3"}
        return str(redis.xadd(run_key("r1", "groups"), {**fields, "task": task}).decode())

    committed, requeued = add("0:0:9:0"), add("1:0:9:1")
    store = Store.from_url(f"redis://127.0.0.1:{server.port}/0")
    await store.trajectories.plan("r1", 1, 1, [(committed, "0:0:9:0")])
    assert await store.trajectories.commit("r1", 1, "a", 1, "checkpoints/1") == 1
    assert await store.trajectories.requeue("r1", 1, [requeued], limit=3) == 0
    await store.close()

    ((_, row),) = redis.xrange(run_key("r1", "ledger"))
    assert row[b"oldest"] == b'["a:3"]'
    assert redis.hget(run_key("r1", "pass_rates"), "7") == b"0.5"
    assert redis.zrange(run_key("r1", "returned"), 0, -1) == [b"1:0:9:1"]
    assert redis.xlen(run_key("r1", "groups")) == 0


def test_scripts_and_other_calls_use_the_same_keys() -> None:
    of = {"run": "r1", "pool": "p", "attempt": "a", "group": "g", "deadlines": "d"}
    of |= {"change": "c", "digest": "x", "index": "0"}
    keys = {name: pattern.format_map(of) for name, pattern in PATTERNS.items()}
    expected = {part: run_key("r1", part) for part in RUN_PARTS}
    expected |= {part: pool_key("p", part) for part in POOL_PARTS}
    expected |= {"sessions": sessions_key("r1", "a"), "sessions_named": named_key("r1", "g")}
    expected |= {"responses": responses_key("r1", "a", 0)}
    expected |= {"changes": CHANGES, "chains": CHAINS, "open_chains": OPEN_CHAINS}
    expected |= {"datasets": DATASETS, "dataset_names": DATASET_NAMES}
    expected |= {"idempotency": "headrace:idempotency:x"}
    expected |= {"dataset_change": f"{DATASETS}:c", "deadlines": "headrace:{r1}:d"}
    assert keys == expected
