"""The grammar of an answer that must call a tool, in the format that the model's parser reads.

vLLM builds it in its own chat route, which takes no token ids. Imported only in vLLM's API server.
"""

import json
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.structural_tag_registry import limit_to_single_tool_call


def tool_call_grammar(
    derenderer: Any, tool_choice: Any, tools: list[dict[str, Any]], parallel_tool_calls: bool
) -> StructuredOutputsParams:
    """Return the grammar of one call, or of several if `parallel_tool_calls`. Arguments must fit
    the schemas of `strict` tools. Raises ValueError."""
    request = ChatCompletionRequest(messages=[], tools=tools, tool_choice=tool_choice)
    tokenizer, config = derenderer.renderer.get_tokenizer(), derenderer.model_config
    parser = derenderer.parser(tokenizer, request.tools, model_config=config).tool_parser
    tag = parser.get_structural_tag(request)
    if tag is None:
        raise ValueError(
            "the parser of this run's tool calls (tool-call-parser) has no grammar of the model's "
            "format, so no call can be forced: send auto, and ask for a call in the prompt"
        )
    if not parallel_tool_calls:
        limit_to_single_tool_call(tag)
    return StructuredOutputsParams(structural_tag=json.dumps(tag.model_dump()))
