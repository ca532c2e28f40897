"""What a user is told of a log."""

from rollout.vllm.logs import essential_lines

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


def test_a_warning_that_mentions_an_error_is_no_cause():
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
