"""`python -m learner.tools.preview`: render dataset rows as a run will, for the gateway.

Reads a PreviewJob from standard input and writes a Rendering. A tokenizer and its chat template may
be hostile: the gateway gives this process no keys, and the process limits its own memory and time.
"""

import json
import resource
import sys
from typing import Any

MEMORY = 4 << 30
"""Bytes of address space. A tokenizer with 256,000 tokens takes half a gigabyte."""
CPU_SECONDS = 15


def main() -> int:
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, CPU_SECONDS)):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, hard))
    # No tokenizer needs torch, whose import takes two seconds.
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    from transformers import AutoTokenizer

    from learner.batch.rendered_rows import rendered
    from services.contracts.preview import PreviewJob

    job = PreviewJob.model_validate_json(sys.stdin.buffer.read())
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            job.folder, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # tokenizers raises nothing more precise
        reason = " ".join(str(error).split())[:300]
        print(json.dumps({"note": f"its tokenizer does not load here: {reason}"}))
        return 0
    print(rendered(job, tokenizer).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
