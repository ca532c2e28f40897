"""Verifiers that ask others over HTTP: `judge`, `model` at a vLLM server, own ones by URL."""
