"""A hostile model folder is refused by name before a library reads it, by each of its readers."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from services.models import UnusableFolder, open_below, open_inside
from services.models.path import check_model
from tests.integration.gateway.servers import GatewayProcess, problems, upload
from tests.security.hostile_models import (
    ADAPTERS,
    MODELS,
    Change,
    good_adapter,
    good_model,
)


def made(folder: Path, change: Change, kind: str) -> Path:
    """A good model or adapter in `folder`, changed."""
    (folder / "secret").write_text("a secret")
    model = good_model(folder / "base")
    if kind == "adapter":
        model = good_adapter(folder / "adapter", model)
    change(model)
    return model


CASES = [pytest.param("model", *case, id=name) for name, case in MODELS.items()]
CASES += [pytest.param("adapter", *case, id=f"adapter: {n}") for n, case in ADAPTERS.items()]


@pytest.mark.parametrize(("kind", "change", "message"), CASES)
def test_a_hostile_folder_is_refused(
    tmp_path: Path, kind: str, change: Change, message: str
) -> None:
    with pytest.raises(UnusableFolder) as refused:
        check_model(made(tmp_path, change, kind))
    assert message in str(refused.value)
    assert not (tmp_path / "unpickled").exists()


def test_good_folders_pass_with_their_tensors(tmp_path: Path) -> None:
    base = good_model(tmp_path / "base")
    (base / "training_args.bin").write_bytes(b"not read")
    adapted = check_model(good_adapter(tmp_path / "adapter", base))
    assert adapted.weights == check_model(base).named
    assert adapted.weights.tensors["lm_head.weight"] == (22, 32)


def test_a_snapshot_of_the_hubs_cache_may_link_into_its_own_entry_only(tmp_path: Path) -> None:
    entry = tmp_path / "models--org--name"
    (entry / "snapshots").mkdir(parents=True)
    snapshot = good_model(entry / "snapshots" / "abc")
    (entry / "blobs").mkdir()
    for number, file in enumerate(list(snapshot.iterdir())):
        file.rename(entry / "blobs" / str(number))
        file.symlink_to(f"../../blobs/{number}")
    # As a user would name it: by a link, too.
    (tmp_path / "name").symlink_to(snapshot)

    assert check_model(tmp_path / "name").named.config["vocab_size"] == 22

    other = tmp_path / "models--org--other"
    other.mkdir()
    (snapshot / "chat_template.jinja").symlink_to(other / "secret")
    with pytest.raises(UnusableFolder, match="a link that leaves"):
        check_model(snapshot)


def test_a_file_that_becomes_a_link_after_its_check_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    inside = tmp_path / "folder"
    (inside / "sub").mkdir(parents=True)
    (inside / "file").write_text("open")
    os.close(open_inside(inside, inside / "file"))
    (inside / "file").unlink()
    (inside / "file").symlink_to("../secret")
    (inside / "up").symlink_to("..")
    for names in (["file"], ["up", "secret"], ["sub"], ["sub", "gone"]):
        with pytest.raises(OSError):  # noqa: PT011, ELOOP, ENOTDIR and others are all right
            open_below(inside, names)
    with pytest.raises(PermissionError, match="a link that leaves"):
        open_inside(inside, inside / "file")


def test_checking_a_folder_imports_no_torch() -> None:
    code = "import sys, services.models.path; print({'torch', 'transformers'} & set(sys.modules))"
    assert os.popen(f'"{sys.executable}" -c "{code}"').read() == "set()\n"


@pytest.fixture(scope="module")
def api(gateway: GatewayProcess) -> Iterator[httpx.Client]:
    with gateway.client() as client:
        upload(client, "sums", b'{"question": "1+1", "answer": "2"}\n' * 40)
        yield client


def submitted(api: httpx.Client, path: Path, **model: object) -> httpx.Response:
    """The gateway's answer to a run of the model at `path`."""
    config = {"model": {"path": str(path), **model}, "data": {"dataset": "sums"}}
    config["rollout"] = {"vllm": {"max_model_len": 64}}
    config["sampling"] = {"max_tokens": 8}
    return api.post("/v1/runs", json={"recipe": "grpo", "config": config})


def test_the_gateway_answers_422_for_every_hostile_folder_and_serves_on(
    api: httpx.Client, tmp_path: Path
) -> None:
    cases = [("model", *case) for case in MODELS.values()]
    cases += [("adapter", *case) for case in ADAPTERS.values()]
    for number, (kind, change, message) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        model = made(tmp_path / str(number), change, kind)
        for lora in (None, {"targets": ["q_proj"]}):
            answer = submitted(api, model, lora=lora)
            assert message in problems(answer)["model.path"]
    assert api.get("/v1/runs").json()["runs"] == []
    good = good_model(tmp_path / "good")
    for path in (good, good_adapter(tmp_path / "adapter", good)):
        assert submitted(api, path).status_code == 201


def test_a_hostile_critic_is_refused_like_a_policy(api: httpx.Client, tmp_path: Path) -> None:
    good, change = good_model(tmp_path / "good"), MODELS["files: linked template"][0]
    (tmp_path / "bad").mkdir()
    critic = made(tmp_path / "bad", change, "model")
    config = {
        "model": {"path": str(good)},
        "data": {"dataset": "sums"},
        "algorithm": {"critic": {"path": str(critic)}},
    }
    answer = api.post("/v1/runs", json={"recipe": "minimind_ppo", "config": config})
    assert "a link that leaves" in problems(answer)["algorithm.critic.path"]


def test_the_gateway_serves_no_file_behind_a_link(
    api: httpx.Client, gateway: GatewayProcess, tmp_path: Path
) -> None:
    model = gateway.data / "runs" / "r1" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (tmp_path / "secret").write_text("a secret")
    (gateway.data / "api-key").write_text("a key")
    (model / "outside.json").symlink_to(tmp_path / "secret")
    (model / "inside.json").symlink_to("../../../api-key")
    (model / "folder").symlink_to(tmp_path)
    os.mkfifo(model / "pipe")
    assert api.get("/v1/files/runs/r1/model/config.json").text == "{}"
    ranged = {"Range": "bytes=1-1"}
    assert api.get("/v1/files/runs/r1/model/config.json", headers=ranged).text == "}"
    for name in ("outside.json", "inside.json", "folder/secret", "pipe", "config.json/x", "."):
        answer = api.get(f"/v1/files/runs/r1/model/{name}")
        assert answer.status_code in (403, 404), name
        assert "a secret" not in answer.text
        assert "a key" not in answer.text
