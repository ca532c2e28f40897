"""From messages to token ids and back to text, by the tokenizer of the run's model folder.

Imports nothing else of `rollout`.
"""
