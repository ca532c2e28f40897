"""The parts of an estimate in the words that people read."""

WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "copies": "copies (reference, lagged, critic, teacher)",
    "published": "the version before, to publish changes",
    "buffers": "buffers of the ranks",
    "activations": "activations",
    "logits": "logits",
    "moved": "state that is moved from the GPUs",
    "asleep": "weights of a vLLM that sleeps",
    "checkpoint": "a checkpoint while it is written",
    "newest": "the newest version",
    "runtime": "CUDA and vLLM themselves",
    "process": "the processes themselves",
    "workers": "the workers on its host",
    "cache": "keys and values",
    "checkpoints": "checkpoints",
    "versions": "versions for the workers",
    "groups": "groups that are too large for Redis",
}
