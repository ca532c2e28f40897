"""Tools that the policy calls in `rollout.episode: tools`: MCP servers, and Python in the reward
service's sandbox.

What a server says is hostile: its bodies, schemas and results are limited before anything reads
them. Imports `rollout.rewards` and `rollout.vllm`, never `rollout.episodes`. Only `mcp_session`
imports the MCP SDK, and only runs with an MCP server import that.
"""
