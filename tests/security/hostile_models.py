"""Model folders that attack whoever reads them, made from one good folder.

A case is a change of a good Llama with 22 tokens, and what the refusal says. None may run code,
show another file, end a process or take its memory.
"""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
    "vocab_size": 22, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
ALPHABET = ["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+-*/=() "]
Change = Callable[[Path], object]


def good_model(folder: Path) -> Path:
    """A Llama of random weights with a tokenizer of one token a character."""
    folder.mkdir()
    write(folder / "config.json", CONFIG)
    width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    attention = {f"self_attn.{name}_proj": (width, width) for name in "qkvo"}
    mlp = {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width)}
    norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (width,))
    layer = attention | mlp | {"mlp.down_proj": (width, inner)} | norms
    shapes = {f"model.layers.{n}.{name}": shape for n in (0, 1) for name, shape in layer.items()}
    shapes |= {"model.norm": (width,), "model.embed_tokens": (22, width), "lm_head": (22, width)}
    random = np.random.default_rng(0)
    tensors = {f"{n}.weight": random.normal(0, 0.05, s) for n, s in sorted(shapes.items())}
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    vocabulary = {token: i for i, token in enumerate(ALPHABET)}
    special = [
        {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, token in enumerate(ALPHABET[:4])
    ]  # fmt: skip
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}
    write(
        folder / "tokenizer.json",
        {"version": "1.0", "added_tokens": special, "model": model, "decoder": {"type": "Fuse"}},
    )
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "unk")}
    write(folder / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", **names})
    return folder


def good_adapter(folder: Path, base: Path, **changes: Any) -> Path:
    """A LoRA adapter of rank 2 for `base`."""
    folder.mkdir()
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    random = np.random.default_rng(1)
    tensors = {
        f"{prefix}A.weight": random.normal(size=(2, 32)).astype(np.float32),
        f"{prefix}B.weight": random.normal(size=(32, 2)).astype(np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2}
    config |= {"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    write(folder / "adapter_config.json", config | changes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((base / name).read_bytes())
    return folder


def write(path: Path, content: Any) -> None:
    """JSON, or bytes as they are."""
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def config(**changes: Any) -> Change:
    return lambda folder: write(folder / "config.json", CONFIG | changes)


def header(content: Any, length: int | None = None, body: bytes = bytes(8)) -> Change:
    """A weight file with this header, which says that it has `length` bytes."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    start = struct.pack("<Q", len(text) if length is None else length)
    return lambda folder: (folder / "model.safetensors").write_bytes(start + text + body)


def tensor(shape: list[Any], begin: int = 0, end: int = 8, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file(name: str, content: Any) -> Change:
    return lambda folder: write(folder / name, content)


def link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def renamed(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new)


def in_folder(name: str, inner: Change) -> Change:
    def change(folder: Path) -> None:
        (folder / name).mkdir()
        inner(folder / name)

    return change


def pipe(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def index(name: str) -> Change:
    return file("model.safetensors.index.json", {"weight_map": {"lm_head.weight": name}})


class Payload:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def pickled(name: str, instead_of: str = "model.safetensors") -> Change:
    """Weights as a pickle. Loading it makes the folder `unpickled` next to the model's folder."""

    def change(folder: Path) -> None:
        (folder / instead_of).unlink()
        (folder / name).write_bytes(pickle.dumps(Payload(folder.parent / "unpickled")))

    return change


def sparse(folder: Path) -> None:
    """Weights of 4 TB that take no room on the disk."""
    rows = 1 << 35
    entry = {"model.embed_tokens.weight": tensor([rows, 32], 0, rows * 128)}
    header(entry, body=b"")(folder)
    os.truncate(folder / "model.safetensors", rows * 128 + 8 + len(json.dumps(entry)))
    write(folder / "config.json", CONFIG | {"vocab_size": 2**31 - 1, "num_hidden_layers": 1})


def breaking_at_the_first_text(folder: Path) -> None:
    """A tokenizer that loads, and panics as soon as it reads a text."""
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text())
    description["pre_tokenizer"] = {"type": "FixedLength", "length": 0}
    write(path, description)


HEADERS: dict[str, tuple[Change, str]] = {
    "header longer than the file": (header({}, 10_000), "no whole safetensors file"),
    "header of 2^64 bytes": (header({}, 2**64 - 1), "a header of 18,446,744,073,709,551,615"),
    "header of 50 MB": (header({}, 50_000_000), "a header of 50,000,000 bytes"),
    "empty file": (file("model.safetensors", b""), "no whole safetensors file"),
    "header is a list": (header(b"[]"), "no whole safetensors file"),
    "header without shapes": (header({"a": {"dtype": "F32"}}), "no whole safetensors file"),
    "header nested": (header(DEEP), "no whole safetensors file"),
    "header is no text": (header(b"\xff\xfe"), "no whole safetensors file"),
    "overlapping": (header({"a": tensor([2]), "b": tensor([2])}), "no whole safetensors file"),
    "negative shape": (header({"a": tensor([-2])}), "no whole safetensors file"),
    "shape of fractions": (header({"a": tensor([2.5])}), "no whole safetensors file"),
    "huge shape": (header({"a": tensor([2**62, 2**62])}), "no whole safetensors file"),
    "unknown type": (header({"a": tensor([2], dtype="P9")}), "no whole safetensors file"),
    "index names the parent": (index("../x.safetensors"), "no .safetensors file of this folder"),
    "index names a path": (index("/etc/passwd"), "no .safetensors file of this folder"),
    "index names nothing": (index("gone.safetensors"), "no .safetensors file of this folder"),
    "index is a list": (file("model.safetensors.index.json", b"[]"), "no list of weight files"),
    "index nested": (file("model.safetensors.index.json", DEEP), "no list of weight files"),
}
CONFIGS: dict[str, tuple[Change, str]] = {
    "nested": (file("config.json", DEEP), "config.json"),
    "nested 500": (file("config.json", b'{"a":' * 500 + b"1" + b"}" * 500), "levels deep"),
    "list": (file("config.json", b"[]"), "a list where an object belongs"),
    "no text": (file("config.json", b"\xff\xfe\x00"), "no JSON"),
    "cut": (file("config.json", b'{"hidden_size": 3'), "no JSON"),
    "large": (file("config.json", b" " * (5 << 20)), "more than 4 MiB"),
    "number of 5,000 digits": (file("config.json", b'{"a": 1%b}' % (b"0" * 5000)), "no JSON"),
    "not a number": (config(rms_norm_eps=float("nan")), "rms_norm_eps is NaN"),
    "rope_scaling a text": (config(rope_scaling="linear"), "rope_scaling is a text"),
    "rope_parameters a list": (config(rope_parameters=[1]), "rope_parameters is a list"),
    "width 0": (config(hidden_size=0), "hidden_size is 0"),
    "width negative": (config(hidden_size=-32), "hidden_size is -32"),
    "width 1e12": (config(hidden_size=10**12), "hidden_size is 1000000000000"),
    "width a float": (config(hidden_size=1e12), "hidden_size is 1000000000000.0"),
    "width a list": (config(hidden_size=[32]), "hidden_size is a list"),
    "heads a text": (config(num_attention_heads="2"), "num_attention_heads is a text"),
    "positions true": (config(max_position_embeddings=True), "max_position_embeddings is True"),
    "huge vocabulary": (config(vocab_size=2**31 - 1), "more numbers than all weights"),
    "a million layers": (config(num_hidden_layers=10**6), "num_hidden_layers is 1000000"),
    "more layers than tensors": (config(num_hidden_layers=2000), "2000 layers do not fit"),
    "huge experts": (config(num_experts=2**31 - 1), "experts are more than the weights"),
    "a part's vocabulary": (config(text_config={"vocab_size": -1}), "text_config.vocab_size is -1"),
    "end is a text": (config(eos_token_id="2"), "eos_token_id is a text"),
    "kernel of the hub": (config(attn_implementation="evil/kernel"), "names code of the hub"),
    "weights elsewhere": (config(transformers_weights="../x.safetensors"), "of its folder"),
    "weights a pickle": (config(transformers_weights="adapter_model.bin"), "of its folder"),
    "generation nested": (file("generation_config.json", DEEP), "generation_config.json"),
    "generation's end": (
        file("generation_config.json", {"eos_token_id": {}}),
        "eos_token_id is an",
    ),
}
TOKENIZERS: dict[str, tuple[Change, str]] = {
    "cut": (file("tokenizer.json", b'{"model"'), "tokenizer.json is no JSON object"),
    "list": (file("tokenizer.json", b"[]"), "tokenizer.json is no JSON object"),
    "nested": (file("tokenizer.json", DEEP * 3), "tokenizer.json is no JSON object"),
    "large": (lambda folder: os.truncate(folder / "tokenizer.json", 1 << 31), "more than 64 MiB"),
    "config nested": (file("tokenizer_config.json", DEEP), "tokenizer_config.json"),
    "config names a file": (
        file("tokenizer_config.json", {"vocab_file": "/etc/passwd"}), "vocab_file names a file"
    ),
    "config names merges": (
        file("tokenizer_config.json", {"merges": "/etc/passwd"}), "merges names a file"
    ),
    "config names a gguf": (
        file("tokenizer_config.json", {"gguf_file": "../x"}), "gguf_file names a file"
    ),
    "template's name is a path": (
        file("tokenizer_config.json", {"chat_template": [{"name": "../x", "template": ""}]}),
        "templates with plain names",
    ),
    "template is a number": (file("tokenizer_config.json", {"chat_template": 7}), "plain names"),
    "template of 2 MB": (file("chat_template.jinja", b" " * (2 << 20)), "more than 1 MiB"),
}  # fmt: skip
FILES: dict[str, tuple[Change, str]] = {
    "linked template": (link("chat_template.jinja", "/etc/passwd"), "a link that leaves"),
    "linked config": (link("config.json", "../secret.json"), "a link that leaves"),
    "linked weights": (link("model.safetensors", "../secret"), "a link that leaves"),
    "linked tokenizer": (link("tokenizer.model", "/proc/self/environ"), "a link that leaves"),
    "linked code": (link("modeling.py", "../secret.py"), "a link that leaves"),
    "linked folder": (link("additional_chat_templates", "/etc"), "a link that leaves"),
    "link to a link": (
        lambda folder: (link("a", "b")(folder), link("b", "/etc/passwd")(folder)),
        "a link that leaves",
    ),
    "linked template of many": (
        in_folder("additional_chat_templates", link("a.jinja", "/etc/passwd")),
        "a link that leaves",
    ),
    "name that is no text": (link("\udcff\x1b[31m", "/etc"), r"\udcff\x1b[31m is a link that"),
    "pipe": (pipe("config.json"), "neither a file nor a folder"),
    "pickle": (pickled("pytorch_model.bin"), "can hold code and are not read"),
    "pickle of another name": (pickled("consolidated.00.pth"), "can hold code and are not read"),
}
MODELS = {
    f"{kind}: {name}": case
    for kind, cases in (
        ("weights", HEADERS), ("config", CONFIGS), ("tokenizer", TOKENIZERS), ("files", FILES)
    )
    for name, case in cases.items()
}  # fmt: skip


def adapter(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        write(path, json.loads(path.read_bytes()) | changes)

    return change


def of_its_own(folder: Path) -> None:
    """The base is an adapter, too."""
    base = good_adapter(folder.parent / "between", folder.parent / "base")
    (base / "config.json").write_text(json.dumps(CONFIG))
    adapter(base_model_name_or_path=str(base))(folder)


ADAPTERS: dict[str, tuple[Change, str]] = {
    "pickle": (pickled("adapter_model.bin", "adapter_model.safetensors"), "can hold code"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "lacks"),
    "nested": (file("adapter_config.json", DEEP), "adapter_config.json"),
    "no base": (adapter(base_model_name_or_path=None), "does not say which model"),
    "base is a list": (adapter(base_model_name_or_path=["x"]), "does not say which model"),
    "base is an adapter": (of_its_own, "is an adapter itself"),
    "other kind": (adapter(peft_type="MULTITASK_PROMPT_TUNING"), "only LORA"),
    "imports a module": (adapter(megatron_config={"a": 1}, megatron_core="os"), "megatron_config"),
    "rank 1e9": (adapter(r=10**9), "rank 1000000000 does not fit"),
    "rank a text": (adapter(r="2"), "rank 2 does not fit"),
    "rank pattern": (adapter(rank_pattern={"q_proj": 10**9}), "rank 1000000000 does not fit"),
    "endless pattern": (adapter(alpha_pattern={"(a+)+$": 1}), "no plain layer's name"),
    "copies layers": (adapter(layer_replication=[[0, 10**9]]), "layer_replication is not"),
}
