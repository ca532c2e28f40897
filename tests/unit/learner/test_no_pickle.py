"""The ranks of a learner exchange tensors and bytes. torch's object collectives would pickle their
arguments and unpickle what they receive."""

import ast
from pathlib import Path

import torch.distributed as dist

LEARNER = Path(__file__).parents[3] / "learner"
PICKLING = {name for name in dir(dist) if "object" in name and callable(getattr(dist, name))}
STORES = {"env://", "rendezvous_from_environment"}
PICKLES = {"pickle", "cloudpickle", "dill", "shelve", "multiprocessing"}


def test_no_rank_pickles_what_it_sends() -> None:
    assert "broadcast_object_list" in PICKLING
    found = []
    for file in sorted(LEARNER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = {
                ast.Attribute: lambda node: {node.attr},
                ast.Name: lambda node: {node.id},
                ast.Import: lambda node: {alias.name.partition(".")[0] for alias in node.names},
                ast.ImportFrom: lambda node: {node.module, *(a.name for a in node.names)},
                ast.Constant: lambda node: {node.value},
            }.get(type(node), lambda node: set())(node)
            found += [f"{file.name}: {name}" for name in names & (PICKLING | STORES | PICKLES)]
    assert found == []
