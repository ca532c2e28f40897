"""From what is typed, and from a run's config, to what is asked of others."""

from pathlib import Path
from typing import Any

import pytest

from headrace.cli.client import Away
from headrace.cli.models import chat
from headrace.cli.models.chat import conversation, prompt_options, template_note
from headrace.cli.options import run_and_step
from headrace.cli.output import CliError, size
from headrace.cli.runs.overrides import overrides_from
from headrace.cli.runs.submit import run_request
from headrace.cli.workers import served
from headrace.wording import duration
from services.cli.models.checkpoints import checkpoint_of


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (["training.max_steps=5"], {"training": {"max_steps": 5}}),
        (["optimizer.lr=1e-6"], {"optimizer": {"lr": 1e-6}}),
        (["a.b=x", "a.c=true", "a.d.e=null"], {"a": {"b": "x", "c": True, "d": {"e": None}}}),
        (["rewards=[{verifier: math}]"], {"rewards": [{"verifier": "math"}]}),
        (["model.path=run:a1"], {"model": {"path": "run:a1"}}),
        (["data.template=Q={prompt}"], {"data": {"template": "Q={prompt}"}}),
        (["a.b=1", "a.b=2"], {"a": {"b": 2}}),
        (
            ["rewards.0.weight=2", "rewards.0.name=x"],
            {"rewards": {"0": {"weight": 2, "name": "x"}}},
        ),
        (["a=[{b: 1}, 5]", "a.0.b=2", "a.0.c.d=3", "a.1=6"], {"a": [{"b": 2, "c": {"d": 3}}, 6]}),
    ],
)
def test_settings_nest_by_their_dots_and_are_yaml(
    settings: list[str], config: dict[str, Any]
) -> None:
    assert overrides_from(settings) == config


def test_a_key_that_is_set_twice_gives_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert overrides_from(["a.b=1", "a.c=1", "a.b=2"]) == {"a": {"b": 2, "c": 1}}
    assert capsys.readouterr().err == "--set a.b is there twice: the last value counts\n"


@pytest.mark.parametrize("setting", ["training.max_steps", "=5", "a..b=1", "a=[1"])
def test_a_setting_that_is_not_key_and_value_is_refused_by_name(setting: str) -> None:
    with pytest.raises(CliError, match="--set"):
        overrides_from([setting])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("data.template=Q: {prompt}", "Q: {prompt}"),
        ("data.template={prompt} The answer comes after ####", None),
        ("data.template=#### {prompt}", None),
        (r"data.template={prompt}\n\nPut it in \boxed{}.", "{prompt}\n\nPut it in \\boxed{}."),
        (r"data.template={prompt} \\n", r"{prompt} \n"),
        (
            r"data.template={prompt}\nWrite \neq, \nabla f and \nu.\nNo \frac.",
            "{prompt}\nWrite \\neq, \\nabla f and \\nu.\nNo \\frac.",
        ),
        ("data.template=[{prompt}]", None),
        ("data.template=null", None),
        ("data.system=null", {"system": None}),
        ("data.system=off", None),
        ("data.dataset=2024", None),
        ("model.path=a #1", None),
        ("evaluation.template=A: {prompt}", None),
        ("data.mix.0.template=A: {prompt}", None),
        ("evaluation.more.1.system=yes", None),
        ("rewards.0.verifier=no", None),
        ("algorithm.kl.type=none", None),
    ],
)
def test_a_key_of_text_takes_its_value_as_it_is_typed(setting: str, value: Any) -> None:
    key, _, typed = setting.partition("=")
    *_, (_, found) = _leaves(overrides_from([setting]))
    assert found == (None if isinstance(value, dict) else typed if value is None else value)
    assert _leaves(overrides_from([setting]))[0][0] == key


def _leaves(config: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(config, dict):
        return [(path, config)]
    return [
        leaf for key, value in config.items() for leaf in _leaves(value, f"{path}.{key}".strip("."))
    ]


def test_a_key_inside_a_free_mapping_is_yaml_without_comments() -> None:
    whole = overrides_from(["rewards.0.params.pattern='#### (.*)'", "rollout.vllm.extra={a: 1}"])
    assert whole["rewards"]["0"]["params"] == {"pattern": "#### (.*)"}
    assert whole["rollout"]["vllm"]["extra"] == {"a": 1}
    for lost in ("rewards.0.params.pattern=####", "rewards.0.params={a: b} # c"):
        with pytest.raises(CliError, match="# begins a comment that would be lost; quote it twice"):
            overrides_from([lost])


def test_keys_of_a_chain_are_read_by_the_type_behind_the_name_of_the_step() -> None:
    found = overrides_from(["rl.data.template=Q: {prompt}", "rl.training.max_steps=3"], steps=True)
    assert found == {"rl": {"data": {"template": "Q: {prompt}"}, "training": {"max_steps": 3}}}


def test_a_value_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text("Q: {prompt}\n\\n#### ä\n", encoding="utf-8")
    assert overrides_from([f"data.template=@{file}"]) == {
        "data": {"template": "Q: {prompt}\n\\n#### ä"}
    }
    file.write_text("- verifier: math\n  weight: 2\n")
    assert overrides_from([f"rewards=@{file}"]) == {"rewards": [{"verifier": "math", "weight": 2}]}
    assert overrides_from(["data.system=@@home"]) == {"data": {"system": "@home"}}
    with pytest.raises(CliError, match=r"data\.system: /none cannot be read: No such file"):
        overrides_from(["data.system=@/none"])
    file.write_bytes(b"\xff")
    with pytest.raises(CliError, match="is not UTF-8 text"):
        overrides_from([f"data.system=@{file}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recipe: grpo\nconfg: {}", r"'confg' is not known at the top \(did you mean 'config'\?\)"),
        ("reciepe: grpo\nconfig: {}", r"'reciepe' .* \(did you mean 'recipe'\?\)"),
        (
            "step: []",
            r"'step' .* \(did you mean 'steps'\?\): a file has recipe, config",
        ),
        ("recipe: grpo\nmodel: {path: m}", "'model' .*: move it into config, beside"),
    ],
)
def test_a_mistyped_key_at_the_top_of_a_file_is_named_with_the_close_one(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(CliError, match=said):
        run_request(str(file), [])


def test_the_home_folder_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    request = run_request("grpo", ["model.path=~/x", "algorithm.teacher.path=~/y"])
    assert request["config"]["model"]["path"] == "/home/ann/x"
    assert request["config"]["algorithm"]["teacher"]["path"] == "/home/ann/y"


def test_every_command_refuses_a_damaged_checkpoint_and_names_the_newest_whole_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "step-000002-a1").mkdir()
    record = {"checkpoint": "step-000002-a1", "name": "r", "id": "a", "state": "succeeded"}
    for step in (None, 2):
        with pytest.raises(CliError, match=r"step-000002-a1 lacks manifest\.json, and the run has"):
            checkpoint_of(record, tmp_path, step)
    for whole in ("000000", "000001", "000003"):
        (tmp_path / f"step-{whole}-a1").mkdir()
        (tmp_path / f"step-{whole}-a1" / "manifest.json").write_text('{"files": {}}')
    (tmp_path / "step-000003-a1" / "manifest.json").write_text("")
    for step in (None, 2):
        with pytest.raises(CliError, match=r"newest whole one is that of step 1: name a@1$"):
            checkpoint_of(record, tmp_path, step)


def test_a_step_without_a_checkpoint_is_answered_with_the_steps_of_all_runs(
    tmp_path: Path,
) -> None:
    for name in ("b/checkpoints/step-000030-b1", "a/checkpoints/step-000010-a1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs/a/checkpoints/step-000040-a1").mkdir()
    record = {"checkpoint": "runs/b/checkpoints/step-000030-b1", "name": "r", "id": "b"}
    resumed = record | {"state": "succeeded", "resume_from": "a", "resume_step": 20}
    said = "it has those of 30, and run a, which it continues, those of 10: raise"
    with pytest.raises(CliError, match=f"no checkpoint of step 25; {said}"):
        checkpoint_of(resumed, tmp_path, 25)


def test_a_run_without_a_checkpoint_is_answered_with_the_time_of_its_first(tmp_path: Path) -> None:
    record = {"checkpoint": None, "name": "r", "id": "b", "state": "running"}
    config = {"config": {"training": {"checkpoint_every": 20}}}
    with pytest.raises(CliError) as raised:
        checkpoint_of(record | config, tmp_path)
    assert str(raised.value) == (
        "run r (b) is running and has no checkpoint yet: it makes one every 20 steps "
        "(training.checkpoint_every) and at its end, also if `headrace cancel` ends it"
    )
    with pytest.raises(CliError, match=r"was cancelled and has no checkpoint$"):
        checkpoint_of(record | config | {"state": "cancelled"}, tmp_path)


def test_a_mistyped_file_is_answered_with_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("recipe: grpo\n")
    with pytest.raises(CliError, match=r"my.yml cannot be read: .* \(did you mean 'my.yaml'\?\)$"):
        run_request("my.yml", [])


def test_the_file_of_a_chat_template_is_read_on_the_submitting_machine(tmp_path: Path) -> None:
    file = tmp_path / "my.jinja"
    file.write_text("{{ messages[0].content }}\n")
    found = run_request("grpo", [f"data.chat_template={file}"])
    assert found["config"]["data"]["chat_template"] == "{{ messages[0].content }}"
    for word in ("auto", "none", "{% if tools %}x{% endif %}"):
        found = run_request("grpo", [f"data.chat_template={word}"])
        assert found["config"]["data"]["chat_template"] == word
    with pytest.raises(CliError, match=r"data\.chat_template: no\.jinja cannot be read"):
        run_request("grpo", ["data.chat_template=no.jinja"])


def test_a_warning_says_that_quotes_are_part_of_a_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert overrides_from(["data.system='Hi'"]) == {"data": {"system": "'Hi'"}}
    assert "--set data.system: the quotes around the text are part of it" in capsys.readouterr().err


def test_a_key_below_a_plain_value_is_refused() -> None:
    with pytest.raises(CliError, match="a was set to 1 before"):
        overrides_from(["a=1", "a.b=2"])


def test_a_place_that_a_list_set_before_does_not_have_is_refused() -> None:
    with pytest.raises(CliError, match=r"--set a.2: a is a list without a place '2': .* 0 to 1"):
        overrides_from(["a=[1, 2]", "a.2=3"])
    with pytest.raises(CliError, match=r"a\.0 was set to 1 before"):
        overrides_from(["a=[1, 2]", "a.0.b=3"])


def test_chat_renders_prompts_as_the_run_does_and_says_so() -> None:
    data = {"dataset": "sums", "system": None, "template": "{prompt}=", "chat_template": "none"}
    assert prompt_options(data, False) == ["--template={prompt}=", "--chat-template=none"]
    assert template_note(data, False) == (
        "prompts get the run's data.template '{prompt}='; --no-template sends them as typed"
    )


def test_chat_without_the_template_sends_prompts_as_typed() -> None:
    data = {"system": "Be brief.", "template": "Q: {prompt}", "chat_template": "auto"}
    assert prompt_options(data, True) == ["--chat-template=auto"]
    given = prompt_options(data | {"chat_template_kwargs": {"enable_thinking": False}}, True)
    assert given == ["--chat-template=auto", '--chat-template-kwargs={"enable_thinking": false}']
    assert template_note(data, True) == (
        "prompts are sent without the run's data.system 'Be brief.' and data.template 'Q: {prompt}'"
    )


def test_chat_asks_workers_as_the_run_would() -> None:
    data = {"system": "Be {brief}.", "template": "Q: {prompt} {x}", "chat_template": "auto"}
    assert conversation("1{prompt}", data, False) == [
        {"role": "system", "content": "Be {brief}."},
        {"role": "user", "content": "Q: 1{prompt} {x}"},
    ]
    assert conversation("1", data, True) == [{"role": "user", "content": "1"}]


def test_chat_takes_a_run_and_a_step() -> None:
    named = ("r", "r@12", "r@latest", "me@home", "@3")
    assert [run_and_step(model) for model in named] == [
        ("r", None), ("r", 12), ("r", None), ("me@home", None), ("@3", None)
    ]  # fmt: skip


def test_chat_waits_while_a_worker_loads_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Away("worker w loads r@4; about 3 s")
    loads.retry_seconds = 3.0
    answers: list[Any] = [loads, loads, ["4"], Away("Redis is away")]
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)

    class Api:
        def parts(self, path: str, json: dict[str, Any]) -> list[str]:
            answer = answers.pop(0)
            if isinstance(answer, Away):
                raise answer
            return list(answer)

    api: Any = Api()
    assert list(chat.once_loaded(api, {})) == ["4"]
    assert waited == [3.0, 3.0]
    with pytest.raises(Away, match="Redis is away"):
        list(chat.once_loaded(api, {}))


def test_the_list_of_workers_names_the_models_that_they_serve() -> None:
    assert served({"models": ["r@4", "r@2"], "loading": "x@1"}) == "r@4, r@2, x@1 (loading)"
    assert served({}) == ""


def test_chat_prints_no_note_for_a_run_with_unchanged_prompts() -> None:
    data = {"system": None, "template": "{prompt}", "chat_template": "auto"}
    assert template_note(data, False) == template_note(data, True) == ""


def test_durations_and_sizes_are_printed_in_a_fitting_unit() -> None:
    assert [duration(s) for s in (42, 180, 18_720, 300_000)] == ["42 s", "3 min", "5.2 h", "3 d"]
    assert [size(b) for b in (12, 2048, 5 << 20)] == ["12 B", "2.0 KiB", "5.0 MiB"]
