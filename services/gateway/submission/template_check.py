"""Warnings from the rows of a submission: a template or a system message that chats do not get,
variables that the chat template does not read."""

from collections.abc import Mapping

from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.data import placeholders
from services.contracts.preview import Rendering
from services.contracts.rows.rendering import SYSTEM
from services.contracts.rows.turn_end import no_end
from services.gateway.submission.row_sample import PLAIN, RowSample


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


def template_use(config: RLConfig | SFTConfig, samples: Mapping[str, RowSample]) -> list[str]:
    """Warnings for names in braces that nothing replaces, and for templates and system messages
    that chats do not get. `samples`: by the sections that name their datasets."""
    # The datasets of a supervised run have one template and one system message.
    asked = samples if isinstance(config, RLConfig) else {"data": samples["data"]}
    return [
        warning
        for section, sample in asked.items()
        for warning in _unreplaced(section, sample) + _unused(section, sample)
    ]


def _unreplaced(section: str, sample: RowSample) -> list[str]:
    """Warnings for names in braces that the policy would read as they stand."""
    template, system = sample.options.template, sample.options.system
    left = [(f"{section}.template", name) for name in placeholders(template) if name != "prompt"]
    left += [(f"{section}.system", name) for name in placeholders(system or "")]
    warnings = []
    if "{{prompt}}" in template:
        keeps = "{{prompt}} keeps a pair of braces: write {prompt}"
        warnings.append(f"{section}.template: {keeps}")
    columns = sorted({name for row in sample.rows.values() for name in row.columns})
    further = f" and, for verifiers alone, {', '.join(columns)[:300]}" if columns else ""
    there = f"; a row of {sample.record.name} has a prompt, a reference{further}"
    for place, name in left:
        only = "only {prompt} is replaced" if place.endswith("template") else "nothing is replaced"
        warnings.append(f"{place}: {{{name}}} stays in the text as it is, since {only}{there}")
    return warnings


def _unused(section: str, sample: RowSample) -> list[str]:
    """Warnings for what chats do not get, with numbers of rows."""
    template, system = sample.options.template, sample.options.system
    chats = [row.prompt for row in sample.rows.values() if isinstance(row.prompt, list)]
    with_system = [chat for chat in chats if any(turn.get("role") in SYSTEM for turn in chat)]
    warnings = []
    if chats and template != PLAIN:
        but = "" if system is None else f" but for {section}.system before them"
        warnings.append(
            f"{section}.template is for text prompts: {len(chats):,} of the {sample.words} are "
            f"chats, and stay as they are{but}; upload their text as prompts, or write the words "
            "into the chats"
        )
    if with_system and system is not None:
        warnings.append(
            f"{section}.system is not used for {len(with_system):,} of the {sample.words}: "
            "they are chats with a system message of their own"
        )
    return warnings
