"""Other APIs than chat completions: Anthropic's Messages and OpenAI's Responses. Each request
becomes one of chat completions, and its answer is written in the API's own form. Pure."""
