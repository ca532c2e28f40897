"""The lines of a log that a user sees."""

from pathlib import Path

import pytest

from rollout.vllm.process.logs import brief, essential_lines, explained, root_cause

LOG = """
(APIServer pid=1) INFO 11-21 04:28:30 [model.py:1] Resolved architecture: LlamaForCausalLM
(APIServer pid=1) WARNING 11-21 04:28:35 [utils.py:5] ulimit: errors like `OSError: [Errno 24]`
(Worker pid=3) ERROR 11-21 04:29:17 [executor.py:10] Traceback (most recent call last):
(Worker pid=3) ERROR 11-21 04:29:17 [executor.py:10]   File "/x/worker.py", line 3, in init
(Worker pid=3) ERROR 11-21 04:29:17 [executor.py:10]     raise ValueError(text)
(Worker pid=3) ERROR 11-21 04:29:17 [executor.py:10] ValueError: no memory for the cache
(EngineCore pid=2) INFO 11-21 04:29:18 [core.py:9] a
(EngineCore pid=2) INFO 11-21 04:29:18 [core.py:9] b
Traceback (most recent call last):
  File "/x/entry.py", line 61, in build
    async with build_async_engine_client_from_engine_args(
           ^^^^^^^^^^^^^^^^^^^^^
RuntimeError: Engine core initialization failed. See root cause above.
"""


def test_causes_and_the_last_lines_remain_and_stack_frames_do_not():
    assert essential_lines(LOG, limit=4) == [
        "ValueError: no memory for the cache",
        "b",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def test_a_warning_that_mentions_an_error_is_not_a_cause():
    assert not any("ulimit" in line for line in essential_lines(LOG, limit=4))


def test_the_message_of_a_validation_error_stays_in_the_log_lines():
    log = "pydantic_core.ValidationError: 1 validation error\n  Value error, too long [type=x]"
    assert essential_lines(log)[-1] == "Value error, too long [type=x]"


def test_a_help_text_is_not_shown():
    log = (
        "usage: x [-h]\n"
        + "                 [--more MORE]\n" * 50
        + "x: error: unknown: --nonsense"
    )
    assert essential_lines(log) == ["usage: x [-h]", "x: error: unknown: --nonsense"]


ENGINE = "(EngineCore_DP0 pid=2) ERROR 11-21 04:29:17 [core.py:10] "
SERVER = "(APIServer pid=1) ERROR 11-21 04:29:18 [async_llm.py:906] "
DIES = f"""
{SERVER}ValueError: a request of before was refused
{ENGINE}EngineCore encountered a fatal error.
{ENGINE}Traceback (most recent call last):
{ENGINE}  File "/x/core.py", line 3, in run
{ENGINE}    self._run()
{ENGINE}RuntimeError: Unsupported CPU attention configuration: head_dim=16
{ENGINE}Exception raised from attention at x.cpp:3 (most recent call first):
{ENGINE}frame #0: c10::Error::Error(...) + 0x58
{SERVER}AsyncLLM output_handler failed.
{SERVER}Traceback (most recent call last):
{SERVER}vllm.v1.engine.exceptions.EngineDeadError: See stack trace (above)
(EngineCore_DP0 pid=2) Process EngineCore_DP0:
(EngineCore_DP0 pid=2) RuntimeError: Unsupported CPU attention configuration: head_dim=16
{SERVER}INFO: Shutting down
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (LOG, "ValueError: no memory for the cache"),
        (DIES, "RuntimeError: Unsupported CPU attention configuration: head_dim=16"),
        (
            f"{ENGINE}    assert width % heads == 0\n{ENGINE}AssertionError",
            "AssertionError at assert width % heads == 0",
        ),
        (
            "pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, max_model_len (9) is too long [type=value_error]\n"
            "    For further information visit https://errors",
            "pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, "
            "max_model_len (9) is too long [type=value_error]",
        ),
        (
            "usage: x [-h]\nx: error: unrecognized arguments: --no",
            "x: error: unrecognized arguments: --no",
        ),
        ("(APIServer pid=1) INFO 11-21 04:28:30 [a.py:1] fine\nKilled", ""),
        (
            f"{ENGINE}torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: no g++",
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: no g++",
        ),
        (
            "(EngineCore_DP0 pid=2) terminate called after throwing an instance of 'c10::Error'\n"
            "  what():  could not create a primitive descriptor\n"
            "(APIServer pid=1) RuntimeError: Engine core died. See root cause above.",
            "terminate called after throwing an instance of 'c10::Error' what():  could not create "
            "a primitive descriptor",
        ),
        (
            "(APIServer pid=1) INFO 11-21 04:28:30 [a.py:1] fine\nIllegal instruction",
            "Illegal instruction",
        ),
        ("(Worker pid=3) INFO 11-21 04:28:30 [a.py:1] free memory: 3 GiB", ""),
        (
            "(Worker pid=3) RuntimeError: Unsupported CPU attention configuration: head_dim=16\n"
            f"{ENGINE}RuntimeError: Worker failed with error 'Unsupported CPU attention "
            "configuration: head_dim=16', please check the stack trace above for the root cause",
            "RuntimeError: Unsupported CPU attention configuration: head_dim=16",
        ),
    ],
)
def test_the_cause_is_the_exception_of_the_process_that_computes(log: str, cause: str) -> None:
    assert root_cause(log) == cause


def test_a_failure_names_the_engines_own_words_and_the_log_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "vllm-w.log"
    path.write_text(DIES)
    text = explained("vLLM could not be brought to a:1", path, ended=False)
    assert brief(text) == (
        "vLLM could not be brought to a:1: RuntimeError: Unsupported CPU attention configuration: "
        f"head_dim=16. Its log ({path})"
    )
    path.write_text("Killed\n")
    assert (
        brief(explained("vLLM ended", path, ended=True)) == f"vLLM ended: Killed. Its log ({path})"
    )
    # A living server's last line is not a cause.
    assert brief(explained("vLLM hangs", path, ended=False)) == f"vLLM hangs. Its log ({path})"
    missing = tmp_path / "none"
    assert "(no log: " in explained("vLLM ended", missing, ended=True)


def test_secrets_and_endless_lines_of_a_log_are_not_shown() -> None:
    told = root_cause(
        "ValueError: token='hf_abc' from https://me:pass@x.y/z, api_key: k1, --hf-token abc, "
        "a token of 5 bytes, hf_more1234" + "x" * 1000
    )
    assert told == (
        "ValueError: token='***' from https://***@x.y/z, api_key: ***, --hf-token ***, "
        "a token of 5 bytes, ***"
    )
    assert not any("hf_" in line for line in essential_lines("ValueError: hf_abcdefgh"))
    assert len(root_cause(f"ValueError: {'y' * 5000}")) == 500
