"""A plain function as a verifier: `def reward(prompt, completion, answer) -> float`, or TRL's
`def reward(completions, **kwargs) -> list[float]`.

The function gets what its parameters name: parts of the item (NAMES), and other columns of the
dataset's row. A parameter with a default is a parameter of the verifier, which a run sets under
`params`.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import create_model

from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    broken,
    correct,
    failed,
)
from services.contracts.scores import ScoreStatus

Function = Callable[..., Any]
NAMES = ("prompt", "completion", "answer", "columns", "prefill", "truncated", "after_thoughts")
"""Parts of an item that a function may ask for."""
LISTS = {"prompts": "prompt", "completions": "completion"}
"""TRL's names for lists, and the parts of an item in them."""
FORMS = (
    "it must take `completion` (and prompt, answer, or columns of the dataset), or TRL's "
    "`completions` with **kwargs"
)


class FunctionVerifier(Verifier[VerifierParams]):
    """Scores with a function of the user's."""

    Params = VerifierParams

    def __init__(self, name: str, function: Function) -> None:
        """Raises TypeError for a function that cannot be called with an item."""
        self.name = name  # type: ignore[misc]
        text = " ".join((inspect.getdoc(function) or "").split())
        self.description = text or f"The function {function.__name__}."  # type: ignore[misc]
        self._function = function
        self._parameters = _parameters_of(function)
        self._is_trl = "completions" in self._parameters
        self._takes_all = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters.values()
        )
        self._settings = [] if self._is_trl else _settings_of(self._parameters)
        fields: dict[str, Any] = {
            parameter.name: (_type_of(parameter), parameter.default) for parameter in self._settings
        }
        self.Params = create_model("FunctionParams", __base__=VerifierParams, **fields)

    def check_reference(self, item: Item, params: VerifierParams) -> None:
        """Implements `Verifier.check_reference`: each column that the function needs is there."""
        self._arguments(item, params)

    def score(self, item: Item, params: VerifierParams) -> Verdict:
        """Implements `Verifier.score`."""
        value = self._function(**self._arguments(item, params))
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        if self._is_trl:
            if not isinstance(value, list | tuple) or len(value) != 1:
                return broken(f"{self.name} returned {value!r} for one completion, not a list of 1")
            value = value[0]
        return _verdict(self.name, value)

    def _arguments(self, item: Item, params: VerifierParams) -> dict[str, Any]:
        known = _trl_arguments(item) if self._is_trl else _arguments(item)
        settings = {parameter.name: getattr(params, parameter.name) for parameter in self._settings}
        columns = {name: [value] for name, value in item.columns.items()}
        everything = (columns if self._is_trl else item.columns) | known | settings
        if self._takes_all:
            named = everything
        else:
            named = {name: everything[name] for name in self._parameters if name in everything}
        for name, parameter in self._parameters.items():
            is_needed = parameter.default is parameter.empty and _is_named(parameter)
            if is_needed and name not in named:
                raise BadReferenceError(
                    f"the row has no column {name!r}, which the function {self.name} needs"
                )
        return named


def is_reward_function(value: Any) -> bool:
    """Whether a function of a user's file looks like a reward: it takes completions."""
    if not inspect.isfunction(value):
        return False
    return bool({"completion", "completions"} & inspect.signature(value).parameters.keys())


def _parameters_of(function: Function) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    if not {"completion", "completions"} & parameters.keys():
        raise TypeError(f"the function {function.__name__} has another form: {FORMS}")
    for parameter in parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"the parameter {parameter.name!r} of {function.__name__} cannot be named in a "
                f"call: {FORMS}"
            )
    return parameters


def _settings_of(parameters: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in parameters.values()
        if parameter.default is not parameter.empty and parameter.name not in NAMES
    ]


def _type_of(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty and not isinstance(parameter.annotation, str):
        return parameter.annotation
    return Any if parameter.default is None else type(parameter.default)


def _is_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind is not parameter.VAR_KEYWORD


def _arguments(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in NAMES}


def _trl_arguments(item: Item) -> dict[str, Any]:
    """Return the arguments as TRL passes them: lists, and a chat's completion as its turns."""
    is_chat = isinstance(item.prompt, list)
    turns = [{"role": "assistant", "content": item.completion}]
    return {
        "prompts": [item.prompt],
        "completions": [turns if is_chat else item.completion],
        "answer": [item.answer],
    }


def _verdict(name: str, value: Any) -> Verdict:
    """Return the verdict that a function's value stands for."""
    match value:
        case Verdict():
            return value
        case bool():
            return correct() if value else failed(ScoreStatus.WRONG)
        case int() | float():
            return Verdict(ScoreStatus.SCORED, float(value))
        case (bool() | int() | float() as reward, str() as detail):
            verdict = _verdict(name, reward)
            return Verdict(verdict.status, verdict.reward, detail)
        case None:
            return broken(f"{name} returned None: the answer is masked from the loss")
    if hasattr(value, "item"):
        # A number of numpy or torch.
        return _verdict(name, value.item())
    return broken(
        f"{name} returned {type(value).__name__}: return a number, True or False, or a pair of a "
        "number and a text"
    )
