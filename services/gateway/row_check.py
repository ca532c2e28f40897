"""Warnings from the rows of a submission: a template or a system message that chats do not get,
variables that the chat template does not read."""

from collections.abc import Mapping

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import PromptOptions, placeholders
from services.contracts.config_keys import keys_of
from services.contracts.preview import Rendering
from services.contracts.records import DatasetRecord
from services.contracts.rows.rendering import SYSTEM
from services.contracts.rows.turn_end import no_end
from services.datasets import DatasetReader
from services.volume import Volume

MOST_COUNTED = 1000
"""Rows of a dataset that are read to count chats."""
PLAIN = PromptOptions().template


def template_warnings(rendering: Rendering, config: RLConfig | SFTConfig) -> list[str]:
    """Warn for a model without a token that ends an answer, and for one without a chat template,
    unless the config says so. Warn for a template that does not begin the answer, and for variables
    that it ignores or that change nothing."""
    warnings = []
    if isinstance(config, RLConfig) and not rendering.has_end and not config.sampling.ignore_eos:
        warnings.append(f"model.path: {no_end(config.sampling.stop_token_ids)}")
    if rendering.form == "plain_text" and config.data.chat_template != "none":
        return [
            *warnings,
            "data.chat_template: the model has no chat template, so prompts are plain text, and "
            "blank lines join the messages of a chat; set it to none, or to a template",
        ]
    if isinstance(config, RLConfig) and rendering.unbegun:
        warnings.append(
            "data.chat_template: the model's chat template does not begin the answer "
            f"(add_generation_prompt): prompts end before {rendering.unbegun[:60]!r}, which the "
            "policy has to write itself; take a template that writes it"
        )
    warnings += [
        f"data.chat_template_kwargs.{name}: the model's chat template does not mention {name}, so "
        "it changes nothing"
        for name in rendering.unread_variables
    ]
    warnings += [
        f"data.chat_template_kwargs.{name}: the first row is the same with and without {name} = "
        f"{config.data.chat_template_kwargs[name]!r}: check the spelling of the value, unless it "
        "is the template's default"
        for name in rendering.idle_variables
    ]
    return warnings


def template_use(
    config: RLConfig | SFTConfig, datasets: Mapping[str, DatasetRecord], volume: Volume
) -> list[str]:
    """Warnings for names in braces that nothing replaces, and for templates and system messages
    that chats do not get. `datasets`: by the keys that name them."""
    return [
        warning
        for key, (template, system) in asked_of(config).items()
        if (record := datasets.get(f"{key}.dataset")) is not None
        for reader in (DatasetReader(volume, record),)
        for warning in _unreplaced(key, template, system, reader)
        + _unused(key, template, system, reader)
    ]


def asked_of(config: RLConfig | SFTConfig) -> dict[str, tuple[str, str | None]]:
    """The template and the system message of each dataset, by the section that names it."""
    data = config.data
    asked: dict[str, tuple[str, str | None]] = {"data": (data.template, data.system)}
    if isinstance(config, RLConfig):
        mixed = [dataset.data for dataset in config.datasets.values()]
        asked |= {
            key: (options.template, options.system)
            for key, options in zip(keys_of("data", "mix", len(data.mix)), mixed, strict=True)
        }
        sets = config.evaluation.sets if config.evaluation else []
        asked |= {
            key: (held_out.template or data.template, held_out.system or data.system)
            for key, held_out in zip(
                keys_of("evaluation", "more", len(sets) - 1), sets, strict=False
            )
        }
    return asked


def _unreplaced(key: str, template: str, system: str | None, reader: DatasetReader) -> list[str]:
    """Warnings for names in braces that the policy would read as they stand."""
    left = [(f"{key}.template", name) for name in placeholders(template) if name != "prompt"]
    left += [(f"{key}.system", name) for name in placeholders(system or "")]
    warnings = []
    if "{{prompt}}" in template:
        warnings.append(f"{key}.template: {{{{prompt}}}} keeps a pair of braces: write {{prompt}}")
    if not left:
        return warnings
    columns = sorted(reader.row(0).columns) if len(reader) else []
    further = f" and, for verifiers alone, {', '.join(columns)[:300]}" if columns else ""
    there = f"; a row of {reader.record.name} has a prompt, a reference{further}"
    for place, name in left:
        only = "only {prompt} is replaced" if place.endswith("template") else "nothing is replaced"
        warnings.append(f"{place}: {{{name}}} stays in the text as it is, since {only}{there}")
    return warnings


def _unused(key: str, template: str, system: str | None, reader: DatasetReader) -> list[str]:
    """Warnings for what chats do not get, with numbers of rows among MOST_COUNTED, evenly
    spaced."""
    if template == PLAIN and system is None:
        return []
    count = min(len(reader), MOST_COUNTED)
    rows = [reader.row(len(reader) * step // count) for step in range(count)]
    chats = [row.prompt for row in rows if isinstance(row.prompt, list)]
    with_system = [chat for chat in chats if any(turn.get("role") in SYSTEM for turn in chat)]
    of = f"of the {count:,} rows of {reader.record.name}"
    of += " that were looked at" if count < len(reader) else ""
    warnings = []
    if chats and template != PLAIN:
        but = "" if system is None else f" but for {key}.system before them"
        warnings.append(
            f"{key}.template is for text prompts: {len(chats):,} {of} are chats, and stay as they "
            f"are{but}; upload their text as prompts, or write the words into the chats"
        )
    if with_system and system is not None:
        warnings.append(
            f"{key}.system is not used for {len(with_system):,} {of}: "
            "they are chats with a system message of their own"
        )
    return warnings
