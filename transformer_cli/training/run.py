"""One run, from text to a trained model; readable from top to bottom."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from transformer_cli import environment, files, heap
from transformer_cli.accounting.freezing import frozen
from transformer_cli.checkpoints.find import list_checkpoints
from transformer_cli.checkpoints.known import check_belongs
from transformer_cli.checkpoints.manifest import read_manifest
from transformer_cli.checkpoints.record import other_versions, read_record, versions
from transformer_cli.checkpoints.tensors import load_weights, weights
from transformer_cli.config.run import RunConfig
from transformer_cli.config.source import dump_config
from transformer_cli.data import corpus, loader
from transformer_cli.data.text import where_in_words
from transformer_cli.decoding.long_lines import usual_sentences
from transformer_cli.errors import DivergedError
from transformer_cli.evaluation.metrics import check_tokenizer
from transformer_cli.machine import device_of
from transformer_cli.model.build import build_model
from transformer_cli.training import beginning, directory, replacing
from transformer_cli.training.clock import Clock, Horizon
from transformer_cli.training.keeping import Keeper, diverged
from transformer_cli.training.listening import Listener
from transformer_cli.training.loop import fit, tell_first_loss
from transformer_cli.training.loss import least
from transformer_cli.training.material import Material
from transformer_cli.training.moving_average import average_of
from transformer_cli.training.optimizers import build_optimizer, load_state_tensors, state_tensors
from transformer_cli.training.outcome import Outcome, outcome_of
from transformer_cli.training.parallel import World, joined
from transformer_cli.training.progress import Progress, check_unspent, check_within, is_over, progress_of
from transformer_cli.training.reading import LEFT_OUT, used_texts
from transformer_cli.training.reporting import Reporter
from transformer_cli.training.schedules import cut_short, peak, peak_in_words
from transformer_cli.training.sharding import shard
from transformer_cli.training.signals import StopRequest
from transformer_cli.training.tensorboard import require_tensorboard
from transformer_cli.training.update import Learner, Update, try_out
from transformer_cli.training.utilisation import utilisation_of
from transformer_cli.training.validation import GivenUpError, Validation, example_of


def train(
    config: RunConfig,
    run_dir: Path,
    *,
    overwrite: bool = False,
    strict: bool = False,
    listener: Listener | None = None,
    since: float | None = None,
) -> Outcome:
    """Train, or continue where a stopped run was saved. The same configuration and text give the same weights, bit for
    bit, on the same machine, however often the run was stopped. strict: nothing that is suspicious is learned from.
    since: when `training.max_hours` began to count, by time.monotonic(); now, if nobody says.

    Raises ResourceError for a missing extra, UsageError where the run directory holds another run's configuration or is
    in use, DataError where its text changed or is suspicious, ModelError where its tokenizer is not what its checkpoint
    was trained by, DivergedError before an update that would not be finite, Interrupted after a signal, with everything
    saved.
    """
    listener = listener or Listener()
    environment.keep_fewer_kernels(config.training.budget_tokens)
    require_tensorboard(config.training)
    # Until the others have come is time, too.
    stop = StopRequest(listener.stopping, hours=config.training.max_hours, since=since)
    with joined(device_of(config), listener.warn) as world, stop:
        run = Run(config, run_dir, listener, world, stop)
        with directory.trained_in(run_dir, listener.say) if world.is_main else nullcontext():
            run.open(overwrite=overwrite, strict=strict)
            return run.train()


class Run:
    """A run directory and what happens in it."""

    def __init__(self, config: RunConfig, run_dir: Path, listener: Listener, world: World, stop: StopRequest) -> None:
        self.config = config
        self.run_dir = run_dir
        self.listener = listener if world.is_main else Listener()
        self.world = world
        self.stop = stop
        self.keeper = Keeper(run_dir, config, world, warn=self.listener.warn)
        self.record: dict[str, Any] = {}

    @functools.cached_property
    def dumped(self) -> str:
        """config.yaml."""
        return dump_config(self.config)

    def open(self, *, overwrite: bool, strict: bool = False, texts: Mapping[str, corpus.Corpus] | None = None) -> None:
        """Check that what is there is this run, or set it aside; not before text and device are known to be there.
        texts: what `load_all` gave, if it was asked."""
        heap.keep()
        here = {"versions": versions(), "device": device_of(self.config).split(":")[0], "--strict": strict}
        directory.check_alike(self.world, here | {"settings": self.config.model_dump(mode="json")})
        directory.check_ours(self.run_dir)
        if words := replacing.beside(self.run_dir):
            self.listener.warn(words)
        self.overwrites = overwrite
        if not overwrite:
            self.record = directory.check_same(self.config, self.run_dir)
        self.held = frozen(self.config)
        check_tokenizer(self.config.evaluation)
        is_new = overwrite or not list_checkpoints(self.run_dir)
        if not is_new and (others := other_versions(self.record.get("versions", {}))):
            self.listener.warn(f"{others}: bits will differ, and what is left of an epoch may be drawn otherwise")
        self.parent = beginning.parent_of(self.config, replaced=self.run_dir) if is_new else None
        self.machine = beginning.machine_of(self.config, self.record, self.world, self.listener).use()
        self.texts = self._texts(texts, is_new=is_new, is_strict=strict)
        if self.world.is_main:
            replacing.sweep(self.run_dir)
            if overwrite:
                replacing.set_aside(self.run_dir, self.listener.say)
            self._keep_record()  # first: it proves whose the directory is
            if is_new:
                files.write_text(self.run_dir / "config.yaml", self.dumped)
        self.world.wait()

    def train(self) -> Outcome:
        """Tokenizer, model, loop."""
        learner = self._begin()
        if self.was_finished:
            self.material.remember()
            return self._outcome()
        self._survey(learner)
        if self.overwrites and self.stop.is_agreed(self.world.sum(*self._asked())):
            raise self.stop.interruption("before the first update")
        if self.world.is_main:
            replacing.forget(self.run_dir)
        self.reporter = Reporter(
            self.run_dir if self.world.is_main else None,
            self.listener,
            horizon=self.horizon,
            progress=self.progress,
            clock=self.clock,
            utilisation=self.utilisation,
        )
        with ExitStack() as first, self.keeper:

            def after(update: Update) -> bool:
                first.close()
                return self._after_update(learner, update)

            owed = self.progress.step if self.progress.owes_validation else None
            if owed is None or not self._settle(learner):
                first.enter_context(self.listener.stage("the first update"))
                tell_first_loss(learner, self.reporter.first)
                fit(learner, self.progress, self.epoch, after)
        self.world.part()
        of_time = self.progress.finished is not None and self.horizon.expected_steps is None
        if words := cut_short(self.config.training, self.progress.step if of_time else None):
            self.listener.warn(words)
        self._write_record(learner)
        if not self.progress.is_complete:
            later = ", whose validation comes first when it goes on" if self.progress.owes_validation else ""
            if later and owed == self.progress.step and self.stop.is_of_time:  # and will be again
                later = ", for whose validation all of that was not enough"
            so_far = f"after step {self.progress.step:,}{self.horizon.of_all}{later}"
            raise self.stop.interruption(f"{so_far}; everything is saved in {files.shown(self.run_dir)}")
        return self._outcome()

    def prepared(self) -> Learner:
        """As it is before the first update, for the sake of the clock; see rehearsal.py."""
        learner = self._begin()
        self._survey(learner)
        return learner

    def _begin(self) -> Learner:
        """Tokenizer and model, as new or as they were saved."""
        train_text, place = self.texts[0], self.run_dir / "tokenizer"
        self.tokenizer = beginning.tokenizer_of(place, self.config, self.parent, train_text, self.world, self.listener)
        here = self.run_dir, self.world, self.listener, self.stop
        self.material = Material(train_text, self.tokenizer, self.config, *here)
        with self.listener.stage("building the model"):
            learner = self._learner()
        self.progress = self._resume(learner)
        if not self.progress.step:
            learner.average.begin()
        self.was_finished = self.progress.is_complete
        self._write_record(learner)  # not before it is known whether it goes on
        return learner

    def _survey(self, learner: Learner) -> None:
        """The text as ids, and what it comes to."""
        config, say, progress = self.config, self.listener.say, self.progress
        self.material.prepare()
        if contributions := self.material.contributions():
            self.record["mixture"] = contributions
            self._write_record(learner)
        self.listener.warn_of(LEFT_OUT, self.material.encoded.counts)
        valid, usual = self.material.encode(self.texts[1], "valid"), self.record["data"]["train"]["usual_sentences"]
        here = self.machine, usual, self.world, self.listener.stage, self._asked_meanwhile
        self.validation = Validation(self.texts[1], valid, self.tokenizer, config, *here)
        n_batches = len(self.material.epoch(progress.epoch)[1])
        left = len(self.material.epoch(progress.epoch, progress.shares)[1]) if progress.shares else n_batches
        if progress.finished is None:  # else its batches may be those of another number of processes
            check_within(progress, left, self.run_dir)
        parameters = beginning.parameters_in_words(learner.model, self.held, is_drawn=config.training.init_from is None)
        say(f"{self.material.in_words(n_batches)}; {parameters}; {self.machine.in_words}")
        with self.listener.stage("trying the largest batches"):
            try_out(learner, loader.batches(*self.material.largest(progress.epoch, progress.shares, self.machine)))
        self.horizon = Horizon(
            config.training,
            updates_per_epoch=-(-n_batches // config.training.accumulation),
            tokens_per_epoch=self.material.target_tokens(progress.epoch),
            validation_tokens=int(self.validation.encoded.lengths[:, 1].sum()),
            least_loss=least(n_vocab=self.tokenizer.target_size, smoothing=config.training.label_smoothing),
            is_rough=self.material.varies,
        ).since(progress)
        last, warmed = self.horizon.expected_steps, self.progress.warmed
        highest = peak(config.training, d_model=config.model.d_model, total_steps=last, warmed=warmed)
        say(f"learning rate: {config.training.schedule}, {peak_in_words(*highest)}")
        if words := cut_short(config.training, last):
            self.listener.warn(words)
        if self.progress.step:
            say(f"continuing after step {self.progress.step:,}")
        processes, n_pieces = (self.machine, self.world.size), self.tokenizer.target_size
        sizes, learns_all = (config.counted, self.material.lengths(progress.epoch)), not self.held
        self.utilisation = utilisation_of(*processes, *sizes, target_vocab=n_pieces, learns_all=learns_all)
        self.clock = Clock(passed_s=self.progress.spent.seconds)

    def epoch(self, epoch: int, first: int) -> tuple[int, Iterator[loader.Batch]]:
        """How many batches an epoch has, and those from the first on."""
        drawn, plan = self.material.epoch(epoch, self.progress.shares)
        if self.horizon.is_rough and not self.progress.shares:
            seen = {"n_batches": len(plan), "n_tokens": self.material.target_tokens(epoch)}
            self.horizon = self.horizon.of_epoch(self.progress, **seen)
        self.clock.lap("epoch")
        self.world.at("update")
        return len(plan), loader.batches(drawn, plan, start=first)

    def _after_update(self, learner: Learner, update: Update) -> bool:
        """Report, validate, save; returns whether to stop here."""
        progress = self.progress
        self.keeper.check()
        self.reporter.horizon = self.horizon
        if update.fault is None:
            self.reporter.update(progress, update)
        else:
            self._skip(update)
        is_due = progress.step % self.config.training.validate_every == 0
        progress.owes_validation = is_due or progress.finished is not None
        return self._settle(learner, update.asked)

    def _settle(self, learner: Learner, asked: Iterable[float] | None = None) -> bool:
        """Validate, save; returns whether to stop here. asked: of all processes, if they said it since the last one."""
        options, step = self.config.training, self.progress.step
        if validates := self.progress.owes_validation:
            self._validate(learner)
        # Alone, what was asked for since the update counts, too.
        if asked is None or self.progress.owes_validation or self.world.size == 1:
            asked = self.world.sum(*self._asked())
        stops, ends = self.stop.is_agreed(asked), self.progress.finished is not None
        if ends or stops or validates or step % (options.checkpoint_every or options.validate_every) == 0:
            self.world.at("checkpoint")
            self.progress.passed_s = self.clock.passed_s
            with learner.average.swapped(when=self.progress.averaged):
                model, moments = weights(learner.model), state_tensors(learner.optimizer, learner.model)
                saved = {"model": model, "optimizer": moments | learner.average.tensors()}
                tokenizer = self.tokenizer.fingerprint
                self.keeper.save(self.progress, **saved, tokenizer=tokenizer, goes_on=not (ends or stops))
            self.clock.lap("checkpoint")
        self.world.at("update")
        return stops or ends

    def _asked(self) -> list[float]:
        """Whether to stop, as numbers that add up over the processes. Time is over where less is left of it than one of
        each kind of work takes."""
        return self.stop.asked(next_s=self.horizon.next_s(self.clock) + self.keeper.to_end_s())

    def _asked_meanwhile(self) -> bool:
        """The same while a validation goes on, after which there is nothing but a checkpoint."""
        return any(self.stop.asked(next_s=self.clock.latest.get("checkpoint", 0.0) + self.keeper.to_end_s()))

    def _spent_s(self) -> float:
        """All that the run would have taken if it ended with the update at hand."""
        return self.horizon.ended_here_s(self.progress, self.clock) + self.keeper.to_end_s()

    def _skip(self, update: Update) -> None:
        """Say which numbers are not finite, and of which lines; DivergedError where that has happened too often."""
        own = where_in_words(self.texts[0].source, self.material.places(update.suspects))
        words = self.reporter.skipped(self.progress, update, "; ".join(filter(None, self.world.gather(own))))
        if self.progress.skipped > self.config.training.max_skipped:
            raise diverged(self.run_dir, words)

    def _validate(self, learner: Learner) -> None:
        """Score the model; a best score resets the patience. Each process translates a part, all have the result; it is
        owed still where one is asked to stop meanwhile."""
        options, progress = self.config.training, self.progress
        self.world.at("validation")
        try:
            results, progress.averaged = learner.average.judged(
                lambda: self.validation.results(learner.sharding.whole()), options.best_by
            )
            is_best = progress.validated(results, options)
        except GivenUpError:
            return
        except DivergedError as failure:
            raise diverged(self.run_dir, f"validation at step {progress.step:,}: {failure.message}") from failure
        self.reporter.validation(progress, results, is_best=is_best)

    def _texts(
        self, given: Mapping[str, corpus.Corpus] | None, *, is_new: bool, is_strict: bool
    ) -> tuple[corpus.Corpus, corpus.Corpus]:
        """Training and validation text, the same as when the run began."""
        texts = used_texts(self.config, given, self.world, self.listener, is_new=is_new, is_strict=is_strict)
        if words := directory.unchecked(self.run_dir, self.record, texts):
            self.listener.warn(words)
        known = self.record.get("data", {})
        self.record["data"] = known | {name: text.as_json() for name, text in texts.items()}
        self.record["data"]["train"]["usual_sentences"] = usual_sentences(texts["train"].source)
        directory.check_alike(self.world, {"text": directory.check_text(self.run_dir, known, texts)})
        return texts["train"], texts["valid"]

    def _learner(self) -> Learner:
        config, options = self.config, self.config.training
        torch.manual_seed(config.seed)
        source, target = self.tokenizer.source_size, self.tokenizer.target_size
        model = build_model(config.model, source_vocab=source, target_vocab=target).to(self.machine.device)
        heap.make_room(sum(parameter.nbytes for parameter in model.parameters()))
        model.compute_in(self.machine.dtype, training=True)
        model.use_attention(fused=self.machine.fused_attention)
        if self.machine.compiled:
            model.use_compiled()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name not in self.held)
        sharding = shard(model, options, self.world)
        optimizer = build_optimizer(model, options)
        portions = beginning.portions_of(self.run_dir, self.world, self.listener, budget=options.budget_tokens)
        others = average_of(model, optimizer, options.ema), self._spent_s, self._asked, portions
        return Learner(sharding, optimizer, options, config.seed, self.world, *others)

    def _resume(self, learner: Learner) -> Progress:
        """Weights, moments and counters of the newest whole checkpoint, if there is one."""
        saved = self.keeper.newest()
        if saved is None and self.parent is not None:
            begun = beginning.begin_weights(self.parent, learner.model, self.tokenizer, self.listener)
            self.record["init_from"], self.parent = begun, None
        if saved is None:
            return Progress(processes=self.world.size)
        for words in directory.lost(self.run_dir, self.record, saved.step):
            self.listener.warn(words)
        check_belongs(saved.path, read_manifest(saved.path), self.config, self.tokenizer)
        progress = progress_of(saved, learner.options)
        load_weights(learner.model, saved.model, origin=files.shown(saved.path))
        if progress.step:
            moments = learner.average.take(saved.optimizer or {}, swapped=progress.averaged)
            if progress.step > progress.not_made:
                load_state_tensors(learner.optimizer, learner.model, moments)
        if not is_over(progress, learner.options):
            progress.finished = None
            check_unspent(progress, learner.options, self.run_dir)
            before = progress.processes
            if progress.divide_among(self.world.size):
                directory.note_change(self.record, progress.step, {"processes": before})
                self.listener.warn(
                    f"the run goes on with another number of processes, {self.world.size:,} instead of {before:,}: "
                    "every sentence is used once all the same, an update has more or fewer of them, bits will differ"
                )
        self.keeper.settle(progress)
        return progress

    def _write_record(self, learner: Learner) -> None:
        """run.json: what was run, with what, and what came of it; config.yaml: how it goes on, or went."""
        if not self.world.is_main:
            return
        here = {
            "versions": versions(),
            "command": sys.argv[:1] and [Path(sys.argv[0]).name, *sys.argv[1:]],
            "seed": self.config.seed,
            "machine": self.machine.as_dict(),
            "processes": self.world.size,
            "tokenizer": self.tokenizer.fingerprint,
            "parameters": sum(p.numel() for p in learner.model.parameters()),
        }
        came: dict[str, Any] = {"steps": self.progress.step, "elapsed_s": round(self.progress.elapsed_s, 3)}
        came["finished"] = self.progress.finished if self.progress.is_complete else None
        self.record = here | self.record | came if self.was_finished else self.record | here | came
        self._keep_record()
        config = directory.as_trained(self.config, self.run_dir) if self.was_finished else self.dumped
        files.write_text(self.run_dir / "config.yaml", config)

    def _keep_record(self) -> None:
        scores = {key: kept for key, kept in read_record(self.run_dir).items() if key == "scores"}  # by `tx evaluate`
        files.write_json(self.run_dir / "run.json", self.record | scores)

    def _outcome(self) -> Outcome:
        of = self.run_dir, self.progress, self.config.training.best_by
        return outcome_of(*of, was_finished=self.was_finished, example=example_of(self.texts[1], self.config.data))
