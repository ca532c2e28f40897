"""YAML documents, read strictly."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice: YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if first := lines.get((key.tag, key.value)):
                problem = f"the key {key.value!r} of line {first} is there again"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.tag, key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises yaml.YAMLError, also for a key that is there
    twice."""
    return yaml.load(text, _Loader)
