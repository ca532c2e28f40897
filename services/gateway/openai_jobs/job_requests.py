"""Checks requests to create a fine-tuning job. Pure. An error names the field in OpenAI's terms."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from services.gateway.openai.bodies import OpenBody, example_of
from services.gateway.openai.json_schemas import schema_problem
from services.gateway.openai_jobs.files import FieldError

AUTO = "auto"
MAX_SEED = 2**31 - 1
MAX_FILTERS = 16
_NOTHING = object()
T = TypeVar("T", bound=BaseModel)

MethodType = Literal["supervised", "dpo", "reinforcement"]


class NewFineTuningJob(OpenBody):
    """A job to create."""

    model_config = example_of(
        {"model": "Qwen/Qwen3-0.6B", "training_file": "file-0123456789abcdef01234567"}
    )

    model: Any = Field(None, description="As `model.path` of a run, or a fine-tuned model's name.")
    training_file: Any = Field(None, description="The id of a file.")
    validation_file: Any = Field(None, description="The id of a file that is not trained.")
    method: Any = Field(None, description="`supervised`, `dpo` or `reinforcement`, with options.")
    hyperparameters: Any = Field(None, description="Older form of `method.supervised`.")
    suffix: Any = Field(None, description="A part of the model's name, up to 64 characters.")
    seed: Any = Field(None, description="Default: one is made.")
    metadata: Any = Field(None, description="Up to 16 texts by name.")
    integrations: Any = Field(None, description="`wandb`, if the operator allows it.")


def _number(low: float, high: float, *, is_whole: bool) -> Callable[[Any], Any]:
    """Return a check of a hyperparameter. `low` itself is allowed for whole numbers only."""

    def check(value: Any) -> Any:
        if value is None or value == AUTO:
            return AUTO
        kinds = (int,) if is_whole else (int, float)
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number or not (low <= value if is_whole else low < value) or value > high:
            least = f"from {low:g}" if is_whole else f"above {low:g}"
            most = "" if math.isinf(high) else f" to {high:g}"
            what = "a whole number" if is_whole else "a number"
            raise ValueError(f"must be 'auto' or {what} {least}{most}, not {str(value)[:40]!r}")
        return value

    return check


Epochs = Annotated[Any, AfterValidator(_number(1, 50, is_whole=True))]
BatchSize = Annotated[Any, AfterValidator(_number(1, 256, is_whole=True))]
RateMultiplier = Annotated[Any, AfterValidator(_number(0, 1e6, is_whole=False))]
Beta = Annotated[Any, AfterValidator(_number(0, 2, is_whole=False))]
ComputeMultiplier = Annotated[Any, AfterValidator(_number(0.00001, 10, is_whole=False))]
Count = Annotated[Any, AfterValidator(_number(1, 1_000_000, is_whole=True))]
Samples = Annotated[Any, AfterValidator(_number(1, 1024, is_whole=True))]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Hyperparameters(_Part):
    """Those of supervised jobs."""

    n_epochs: Epochs = AUTO
    batch_size: BatchSize = AUTO
    learning_rate_multiplier: RateMultiplier = AUTO


class DPOHyperparameters(Hyperparameters):
    """Those of DPO jobs."""

    beta: Beta = AUTO


class ReinforcementHyperparameters(Hyperparameters):
    """Those of reinforcement jobs."""

    compute_multiplier: ComputeMultiplier = AUTO
    eval_interval: Count = AUTO
    eval_samples: Samples = AUTO
    reasoning_effort: Literal["default"] | None = None


class Supervised(_Part):
    """Options of a supervised job."""

    hyperparameters: Hyperparameters | None = None


class PreferenceOptions(_Part):
    """Options of a DPO job."""

    hyperparameters: DPOHyperparameters | None = None


class Reinforcement(_Part):
    """Options of a reinforcement job."""

    grader: dict[str, Any]
    response_format: dict[str, Any] | None = None
    hyperparameters: ReinforcementHyperparameters | None = None

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The JSON schema that answers keep to, if they have one. Raises FieldError."""
        param = "method.reinforcement.response_format"
        format = self.response_format or {"type": "text"}
        if format.get("type") == "text":
            return None
        if format.get("type") != "json_schema":
            kind = str(format.get("type"))[:40]
            raise FieldError(f"{param}.type", f"must be 'text' or 'json_schema', not {kind!r}")
        named = format.get("json_schema")
        schema = named.get("schema") if isinstance(named, dict) else None
        if not isinstance(schema, dict):
            raise FieldError(f"{param}.json_schema.schema", "is required: a JSON schema")
        if problem := schema_problem(schema):
            raise FieldError(f"{param}.json_schema.schema", f"this is no JSON schema: {problem}")
        return schema


class JobMethod(_Part):
    """The method of a job, and its options."""

    type: MethodType
    supervised: Supervised | None = None
    dpo: PreferenceOptions | None = None
    reinforcement: Reinforcement | None = None

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The method's hyperparameters, those that were left out as `auto`."""
        match self.type:
            case "supervised":
                return (self.supervised and self.supervised.hyperparameters) or Hyperparameters()
            case "dpo":
                return (self.dpo and self.dpo.hyperparameters) or DPOHyperparameters()
            case _:
                given = self.reinforcement and self.reinforcement.hyperparameters
                return given or ReinforcementHyperparameters()


class WandB(_Part):
    """Where Weights & Biases shows a job."""

    project: str
    name: str | None = None
    entity: str | None = None
    tags: list[str] | None = None


class Integration(_Part):
    """A tracker of a job."""

    type: Literal["wandb"]
    wandb: WandB


MetadataKey = Annotated[str, Field(min_length=1, max_length=64)]


class JobRequest(_Part):
    """A checked request."""

    model: Annotated[str, Field(min_length=1, max_length=1000)]
    training_file: str
    validation_file: str | None = None
    method: JobMethod = JobMethod(type="supervised")
    suffix: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    metadata: (
        Annotated[dict[MetadataKey, Annotated[str, Field(max_length=512)]], Field(max_length=16)]
        | None
    ) = None
    integrations: Annotated[list[Integration], Field(max_length=1)] | None = None


def parsed_request(body: Mapping[str, Any]) -> JobRequest:
    """Return a request that can be used. Raises FieldError."""
    given = {name: value for name, value in body.items() if value is not None}
    older = given.pop("hyperparameters", None)
    if older is not None:
        if "method" in given:
            raise FieldError(
                "hyperparameters", "is the older form of method: leave one of them out"
            )
        _checked(Hyperparameters, older, "hyperparameters")
        given["method"] = {"type": "supervised", "supervised": {"hyperparameters": older}}
    request = _checked(JobRequest, given)
    method = request.method
    for other in ("supervised", "dpo", "reinforcement"):
        if other != method.type and getattr(method, other) is not None:
            raise FieldError(f"method.{other}", f"is not used: method.type is {method.type!r}")
    if method.type == "reinforcement" and method.reinforcement is None:
        raise FieldError("method.reinforcement.grader", "is required")
    if method.reinforcement is not None:
        # Checks the schema.
        _ = method.reinforcement.json_schema
    return request


def metadata_filter(query: list[tuple[str, str]], known: set[str]) -> dict[str, str | None]:
    """Return the values that `metadata[KEY]=VALUE` of a query asks for. `metadata=null` asks for
    jobs without metadata: the key is empty. Raises FieldError for an unknown parameter."""
    wanted: dict[str, str | None] = {}
    for name, value in query:
        if name == "metadata" and value == "null":
            wanted[""] = None
        elif name.startswith("metadata[") and name.endswith("]"):
            wanted[name.removeprefix("metadata[")[:-1]] = value
        elif name not in known:
            raise FieldError(name[:80], "is not known here")
    if len(wanted) > MAX_FILTERS:
        raise FieldError("metadata", f"may name at most {MAX_FILTERS} keys")
    return wanted


def matches(metadata: Mapping[str, str] | None, wanted: Mapping[str, str | None]) -> bool:
    """Return whether a job's metadata has all values of `metadata_filter`."""
    if "" in wanted and metadata:
        return False
    there = metadata or {}
    return all(there.get(key) == value for key, value in wanted.items() if key)


def _checked(kind: type[T], value: Any, root: str = "") -> T:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(filter(None, (root, _place(value, first["loc"]))))
        raise FieldError(place[:200], _reason(place, first)) from None


def _place(value: Any, location: tuple[int | str, ...]) -> str:
    """Return the keys of a location, without the names of types between them."""
    kept: list[str] = []
    for number, step in enumerate(location):
        is_last = number == len(location) - 1
        below = _below(value, step)
        if below is _NOTHING and (step == "[key]" or not (is_last and isinstance(value, dict))):
            continue
        value = below
        kept.append(str(step))
    return ".".join(kept)


def _below(value: Any, step: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _NOTHING)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return _NOTHING


def _reason(place: str, error: Any) -> str:
    match error["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return "is not known here"
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
    if place.endswith("reasoning_effort"):
        return (
            "is not supported: a model here reasons as its chat template has it; leave it out, or "
            "set it to 'default'"
        )
    if place.startswith("integrations.") and place.endswith(".type"):
        return f"{str(error.get('input'))[:40]!r} is not supported: there is 'wandb'"
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {str(error.get('input'))[:60]!r}"
