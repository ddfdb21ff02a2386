"""The page that `tx evaluate -o` writes, and what it says of whose translations these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformer_cli
from transformer_cli.cli import console
from transformer_cli.cli.results import check_suffix, refuse_own_input, write_result
from transformer_cli.files import shown

if TYPE_CHECKING:
    from transformer_cli.checkpoints.known import KnownRun
    from transformer_cli.config.evaluation import EvaluationConfig
    from transformer_cli.config.run import RunConfig
    from transformer_cli.evaluation.page import About, Judged


def checked(name: str | None, *inputs: str | None, config: str | None) -> Path | None:
    """Where the page goes; UsageError for another kind of file, and for one that is read or belongs to a run."""
    if name is None:
        return None
    path = Path(name)
    check_suffix(path, ".html")
    refuse_own_input(path, *inputs, config=config)
    return path


def write(path: Path, judged: Sequence[Judged], about: About, options: EvaluationConfig) -> None:
    from transformer_cli.evaluation.page import page

    with console.pulse.doing("writing the page"):
        content = page(judged, about, options).encode("utf-8")
    write_result(path, content)


def of_runs(opened: Sequence[KnownRun], settings: RunConfig, how: Mapping[str, Any]) -> About:
    """how: the decoding, the seed and the engine that translated."""
    from transformer_cli.config.decoding import DecodingConfig
    from transformer_cli.config.source import dump_config
    from transformer_cli.decoding.options import in_words
    from transformer_cli.evaluation.page import About

    names = ", ".join(run.name for run in opened)
    search = in_words(how["decoding"])
    settings = settings.model_copy(update={"decoding": DecodingConfig.model_validate(how["decoding"])})
    steps = [run.manifest.step for run in opened]
    step = ", ".join(f"step {step:,}" for step in steps)
    facts = {
        "model": ", ".join(run.title for run in opened),
        "trained for": f"{', '.join(f'{step:,}' for step in steps)} updates",
        "languages": opened[0].languages,
        "search": search,
        "engine": how["engine"],
        "seed": str(how["seed"]),
    }
    title = f"{names} \u00b7 {step} \u00b7 {opened[0].languages} \u00b7 {search}"
    return About(title, facts | _versions(), dump_config(settings))


def of_files(hypotheses: Sequence[str], options: EvaluationConfig) -> About:
    """Finished translations, of which nothing is known but how they are scored."""
    from transformer_cli.config.settings import written
    from transformer_cli.evaluation.page import About

    facts = {"translations": ", ".join(map(shown, hypotheses)), **_versions()}
    settings = [f"evaluation.{name}: {written(value)}" for name, value in options.model_dump().items()]
    names = [Path(name).name for name in hypotheses]
    if len(set(names)) < len(names):
        names = list(map(shown, hypotheses))
    return About(", ".join(names), facts, "\n".join(settings))


def _versions() -> dict[str, str]:
    import sacrebleu

    return {"scored by": f"sacreBLEU {sacrebleu.__version__}, tx {transformer_cli.__version__}"}
