"""Supervised configs that are refused, each with its ways out (ways_out)."""

from typing import Any

from tests.unit.contracts.configs import SFT
from tests.unit.contracts.refused_parts import (
    DATA,
    IN_BACKWARD,
    LORA,
    OUT,
    Way,
)

PRETRAINED = SFT | {"model": {"path": "m"}, "optimizer": {"type": "adamw"}}
PREFERENCES = PRETRAINED | {"objective": {"type": "dpo"}}
SUPERVISED: list[tuple[dict[str, Any], list[Way]]] = [
    (
        SFT | {"model": {"source": "scratch", "tokenizer": {"alphabet": "aab"}}},
        [{"model.tokenizer.alphabet": "ab"}],
    ),
    (
        SFT | {"model": {"source": "scratch", "experts": 2}},
        [{"model.experts": 3}, {"model.experts": 0}],
    ),
    (
        SFT | {"model": {"source": "scratch", "hidden_size": 100, "heads": 3}},
        [{"model.heads": 5}],
    ),
    (
        SFT | {"model": {"source": "scratch", "hidden_size": 36, "heads": 4}},
        [{"model.hidden_size": 40}, {"model.heads": 2}],
    ),
    (
        SFT | {"data": DATA | {"weight": 1}},
        [{"data.weight": OUT}, {"data.mix": [{"dataset": "e", "weight": 1}]}],
    ),
    (
        SFT | {"training": {"rows_per_step": 8}, "packing": {"tokens_per_step": 256}},
        [{"training.rows_per_step": OUT}, {"packing": OUT}],
    ),
    (
        SFT | {"data": DATA | {"max_seq_len": 300}},
        [{"data.max_seq_len": 256}, {"model.max_length": 300}],
    ),
    (
        SFT | {"data": DATA | {"max_seq_len": 64}, "packing": {"tokens_per_step": 100}},
        [{"packing.tokens_per_step": 64}, {"packing.tokens_per_step": 128}],
    ),
    (
        PRETRAINED | {"training": {"offload": ["reference"]}},
        [{"training.offload": []}, {"objective": {"type": "dpo"}}],
    ),
    (SFT | {"objective": {"type": "dpo"}}, [{"model": {"path": "run:RUN"}}]),
    (
        PREFERENCES | {"validation": {"best": "bits_per_byte"}},
        [{"validation.best": "loss"}, {"validation.best": OUT}],
    ),
    (
        SFT | {"packing": {"tokens_per_step": 256, "crop": "first"}},
        [{"packing.when_none_fits": "crop"}, {"packing.crop": OUT}],
    ),
    (
        PREFERENCES | {"packing": {"tokens_per_step": 256}},
        [{"packing": OUT, "training.rows_per_step": 8}],
    ),
    (PREFERENCES | {"data": DATA | {"train_on": "all"}}, [{"data.train_on": OUT}]),
    (
        PREFERENCES | {"model": LORA, "training": {"offload": ["reference"]}},
        [{"training.offload": []}],
    ),
    (
        PRETRAINED | {"optimizer": {"type": "adamw", **IN_BACKWARD}},
        [{"optimizer.in_backward": OUT}],
    ),
    (PRETRAINED | {"model": LORA, "optimizer": {"type": "muon"}}, [{"optimizer.type": "adamw"}]),
    (SFT | {"training": {"max_steps": 0}}, [{"training.max_steps": 1}]),
    (SFT | {"training": {"offload": ["critic"]}}, [{"training.offload": []}]),
    (
        SFT | {"validation": {"share": 0, "patience": 3}},
        [
            {"validation.share": 0.1},
            {"validation.datasets": ["e"]},
            {"validation.patience": OUT},
        ],
    ),
]
