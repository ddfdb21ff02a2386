"""What a model costs, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from transformer_cli.accounting import flops, hardware, memory
from transformer_cli.accounting.flops import Term, Work
from transformer_cli.accounting.hardware import UTILISATION, Bound, Hardware
from transformer_cli.accounting.memory import Item, Storage
from transformer_cli.accounting.parameters import Count, product
from transformer_cli.accounting.shapes import Stage, journeys
from transformer_cli.cli.parameter_tables import binary
from transformer_cli.cli.tables import Column, Table, tree
from transformer_cli.config.model import Stack
from transformer_cli.config.run import untrainable
from transformer_cli.wording import counted

if TYPE_CHECKING:
    from transformer_cli.cli.subject import Subject


@dataclass(frozen=True)
class Section:
    """One part of the answer, for people and for programs."""

    name: str
    tables: tuple[Table, ...]
    fields: dict[str, Any]


@dataclass(frozen=True)
class Costs:
    """A model, its work, how its numbers are kept, and where if that was said; each method makes one section.

    in_full_batches: nobody said of how many sentences, so that training, where it is configured, is counted by its own.
    """

    subject: Subject
    count: Count
    work: Work
    storage: Storage
    device: Hardware | None = None
    in_full_batches: bool = False

    def shapes(self) -> Section:
        """The way of one token."""
        found = journeys(
            self.count.model,
            vocabs=(self.subject.source_vocab, self.subject.target_vocab),
            source_length=self.work.source_length,
            target_length=self.work.target_length,
        )
        tables = tuple(self._journey(side, stages) for side, stages in found.items())
        return Section("shapes", tables, {side: [asdict(stage) for stage in found[side]] for side in found})

    def flops(self) -> Section:
        """Training, prefill and one step, per part."""
        passes = self._passes()
        fields: dict[str, Any] = {name: _pass_json(terms, name) for name, terms in passes.items()}
        fields["training"]["readings"] = self._readings
        fields["training"]["hidden_by_mask_flops"] = flops.hidden_by_mask(self.count.model, self._read)
        return Section("flops", (self._flops_table(passes),), fields)

    def memory(self) -> Section:
        """Training and translating, per purpose."""
        items = self._items()
        tables = tuple(self._memory_table(name, items[name]) for name in items)
        fields = {name: {f"{i.name}_bytes": i.bytes for i in items[name]} for name in items}
        for name, of_purpose in fields.items():
            of_purpose["total_bytes"] = sum(i.bytes for i in items[name])
        kept = asdict(self.storage) | {"training_batch_size": self._batch.batch_size}
        return Section("memory", tables, kept | fields)

    def hardware(self, *, tokens: int | None, utilisation: float | None) -> Section:
        """The roofline, and how long training takes; tokens are those that training sees, as configured when None."""
        device = self.device
        assert device is not None
        bounds = hardware.bounds(device, self.count, self.work, self.storage, passes=self._passes())
        cost = self._training_cost(device, tokens=tokens, utilisation=utilisation)
        needed = {name: sum(item.bytes for item in items) for name, items in self._items().items()}
        fields = {
            **{key: value for key, value in asdict(device).items() if key != "sources"},
            "sources": {name: {"what": s.what, "date": str(s.date)} for name, s in device.sources.items()},
            "precision": self.storage.precision,
            "ridge_flops_per_byte": device.ridge(self.storage.precision),
            **{name: _bound_json(bound) for name, bound in bounds.items()},
            **({"tokens_per_s": self.work.batch_size / bounds["step"].seconds} if "step" in bounds else {}),
            "training": cost,
            "needed": {f"{name}_bytes": n_bytes for name, n_bytes in needed.items()},
        }
        return Section(
            "hardware", (self._roofline(device, bounds, needed), self._training(device, cost, needed)), fields
        )

    # --- the numbers

    @property
    def _is_trainable(self) -> bool:
        """Whether `tx train` would take the configuration, so that its settings of training mean something."""
        return not any(untrainable(self.subject.config))

    @property
    def _readings(self) -> int:
        """Of each sentence, in training: R-Drop has two."""
        return 1 if self.subject.config.training.r_drop is None else 2

    @property
    def _read(self) -> Work:
        """What training reads."""
        return replace(self.work, batch_size=self._readings * self.work.batch_size)

    @property
    def _batch(self) -> Work:
        """What training holds at once."""
        if not (self.in_full_batches and self._is_trainable):
            return self.work
        return replace(self.work, batch_size=self._full)

    @property
    def _full(self) -> int:
        """Sentences of a batch as `tx train` makes them of these lengths."""
        longest = max(self.work.source_length, self.work.target_length)
        return max(1, self.subject.config.training.budget_tokens // longest)

    def _passes(self) -> dict[str, list[Term]]:
        model = self.count.model
        passes = {"training": flops.training(self._read)}
        if "decoder" in model.sides:
            passes |= {"prefill": flops.prefill(model, self.work), "step": flops.step(self.work)}
        vocab = self.subject.target_vocab
        return {name: flops.terms(model, a_pass, target_vocab=vocab) for name, a_pass in passes.items()}

    def _items(self) -> dict[str, list[Item]]:
        vocab, options = self.subject.target_vocab, self.subject.config.training
        items = {
            "training": memory.training(self.count, self._batch, self.storage, target_vocab=vocab, options=options)
        }
        if "decoder" in self.count.model.sides:
            items["decoding"] = memory.decoding(self.count, self.work, self.storage)
        return items

    def _training_cost(self, device: Hardware, *, tokens: int | None, utilisation: float | None) -> dict[str, Any]:
        """Speed, and cost where it is known how many tokens there are."""
        options = self.subject.config.training
        each = {"target_vocab": self.subject.target_vocab, "readings": self._readings}
        share = utilisation or UTILISATION
        flops_per_s = share * device.peak_flops_per_s[self.storage.precision]
        speed = {
            "utilisation": share,
            "utilisation_is_assumed": utilisation is None,
            "tokens_per_s": hardware.training_speed(flops_per_s, self.count, self.work, **each),
        }
        configured = tokens is None
        if configured and self._is_trainable and options.max_epochs is None:
            n_batches, full = (options.last_step or 0) * options.accumulation, self._full * self.work.target_length
            tokens = options.budget.tokens if options.budget else n_batches * full
        if tokens is None:
            return speed
        cost = hardware.training_cost(flops_per_s, self.count, self.work, tokens=tokens, **each)
        return speed | {"tokens": tokens, "tokens_are_configured": configured} | asdict(cost)

    # --- the tables

    def _journey(self, side: Stack, stages: list[Stage]) -> Table:
        rows: list[tuple[str, ...]] = []
        for layers, members in groupby(stages, key=lambda stage: stage.layers):
            if layers:
                rows.append((f"{counted(layers, 'layers')}, each", "", ""))
            rows += [("  " * bool(layers) + s.name, product(*s.shape).text or "1", s.how) for s in members]
        return Table(
            title=f"{self.subject.name}: a token's way through the {side}",
            columns=(Column("Stage"), Column("Numbers", "right"), Column("Made by")),
            rows=tuple(rows),
        )

    def _flops_table(self, passes: dict[str, list[Term]]) -> Table:
        by_part = {name: {term.part: term.flops for term in terms} for name, terms in passes.items()}
        totals = {name: sum(numbers.values()) for name, numbers in by_part.items()}
        forward = by_part["training"]
        unit, size = _unit(3 * totals["training"])
        columns = [("Forward", size, forward), ("Backward", size, {part: 2 * n for part, n in forward.items()})]
        if "step" in passes:
            step_unit, step_size = _unit(totals["step"])
            columns += [("Prefill", size, by_part["prefill"]), (f"Step, {step_unit}", step_size, by_part["step"])]

        lines = [(part, tuple(_in(size, of.get(part, 0)) for _, size, of in columns), 0) for part in forward]
        return Table(
            title=f"{self.subject.name}: {unit} for {self._amount(self.work)}",
            columns=(Column("Part"), *(Column(heading, "right") for heading, *_ in columns)),
            rows=tuple(row for row, _ in tree(lines)),
            totals=(("total", *(_in(size, sum(of.values())) for _, size, of in columns)),),
            notes=tuple(self._flops_notes(totals)),
        )

    def _flops_notes(self, totals: dict[str, int]) -> Iterator[str]:
        model, work, read = self.count.model, self.work, self._read
        forward = totals["training"]
        yield f"Training: {forward:,} FLOPs forward + {2 * forward:,} backward = {3 * forward:,}."
        if self.subject.config.training.freeze:
            yield "Backward is at most that: what training.freeze spares is not taken off."
        if self._readings > 1:
            yield "R-Drop reads each sentence twice: Forward and Backward are of both readings."
        if "step" in totals:
            what = "the source" if "encoder" in model.sides else "a prompt"
            yield (
                f"Prefill, reading {what}: {totals['prefill']:,} FLOPs. One step, token {work.target_length:,} of "
                f"every {work.path}: {totals['step']:,}."
            )
        yield "A multiply-add is two FLOPs. Norms, biases, softmax, activations, dropout and look-ups are not counted."
        if hidden := flops.hidden_by_mask(model, read):
            yield (
                f"The causal mask throws {hidden:,} of the forward FLOPs away: scores with later tokens. They are "
                "computed, and counted."
            )
        side, length = ("decoder", work.target_length) if work.target_length else ("encoder", work.source_length)
        if model.kv_heads == model.n_heads and model.n_heads * model.head_width == model.d_model:
            total = 4 * read.batch_size * model.d_model * length * (2 * model.d_model + length)
            yield (
                f"Self-attention of one {side} layer, 4 x B x d x L x (2 x d + L): 4 x {read.batch_size:,} x "
                f"{model.d_model:,} x {length:,} x (2 x {model.d_model:,} + {length:,}) = {total:,}."
            )
        if model.extra:
            yield f"Not counted, for tx does not build them: {', '.join(extra.name for extra in model.extra)}."

    def _memory_table(self, name: str, items: list[Item]) -> Table:
        total = sum(item.bytes for item in items)
        where = f"{self.storage.precision} on {self.storage.device}"
        amount = self._amount(self.work) if name == "decoding" else self._amount(self._batch, beams=False)
        return Table(
            title=f"{self.subject.name}: {name}, {amount}, {where}",
            columns=(Column("Purpose"), Column("Bytes", "right"), Column("From", optional=True)),
            rows=tuple((item.name.replace("_", " "), f"{item.bytes:,}", item.how) for item in items),
            totals=(("total", f"{total:,}", binary(total)),),
            notes=tuple(self._memory_notes(name, has_logits=any(item.name == "logits" for item in items))),
        )

    def _memory_notes(self, name: str, *, has_logits: bool) -> Iterator[str]:
        config = self.subject.config
        if name == "decoding":
            yield "Keys and values as needed; tx reserves up to twice as much for written ones, as tables double."
            return
        if has_logits:
            yield "Logits are made a few rows at a time; in brackets what all would take, with softmax and gradient."
        if config.precision == "auto" and self.device is None:
            yield "precision: auto may be bf16 where it is faster: --set precision=bf16."
        if self._is_trainable:
            here = "so here" if self.in_full_batches else f"--batch-size {self._full:,} here"
            yield f"tx train fills batches to {config.training.budget_tokens:,} tokens a side: {here}."
            yield "It rounds rows up to 16 tokens for attention, so that short sentences take more than is said here."
            if (self.storage.precision, self.storage.device) == ("bf16", "cpu"):
                yield "Where there is g++, Adam's moments and most gradients take half: tx train --dry-run measures it."
        if config.training.freeze:
            yield "Activations are at most that many: what training.freeze spares of them is not taken off."
        yield "Not all is there at once: gradients are made while activations are let go. The allocator comes on top."

    def _roofline(self, device: Hardware, bounds: dict[str, Bound], needed: dict[str, int]) -> Table:
        precision = self.storage.precision
        peak, bandwidth = device.peak_flops_per_s[precision], device.bandwidth_bytes_per_s
        notes = [
            f"{peak / 1e12:,.4g} TFLOP/s in {precision}, {bandwidth / 1e9:,.0f} GB/s: below "
            f"{device.ridge(precision):,.0f} FLOPs per byte reading takes longer than computing."
        ]
        if "step" in bounds:
            per_s = self.work.batch_size / bounds["step"].seconds
            too_large = needed["decoding"] > device.memory_bytes
            but = f"; but decoding {_fits(needed['decoding'], device)}" if too_large else ""
            notes.append(f"At best {per_s:,.1f} tokens per second, {self.work.batch_size:,} at a time{but}.")
        sources = dict.fromkeys(f"{source.what} ({source.date})" for source in device.sources.values())
        return Table(
            title=f"{self.subject.name} on {device.name}, {self._amount(self.work)}",
            columns=(
                Column("Pass"),
                *(Column(name, "right") for name in ("FLOPs", "Bytes read", "FLOP/byte", "At least")),
                Column("Bound by"),
            ),
            rows=tuple(
                (name, f"{b.flops:,}", f"{b.bytes:,}", f"{b.intensity:,.1f}", duration(b.seconds), b.by)
                for name, b in bounds.items()
            ),
            notes=(*notes, f"Sources: {'; '.join(sources)}."),
        )

    def _training(self, device: Hardware, cost: dict[str, Any], needed: dict[str, int]) -> Table:
        peak = device.peak_flops_per_s[self.storage.precision]
        share = f"{100 * cost['utilisation']:.3g}% of {peak / 1e12:,.4g} TFLOP/s"
        tokens, rule = (
            ("target tokens", "6 (N_enc S + N_dec T)") if len(self.count.model.sides) == 2 else ("tokens", "6 N D")
        )
        rows = [
            ("utilisation", share, "assumed" if cost["utilisation_is_assumed"] else "as given"),
            (f"{tokens} per second", f"{cost['tokens_per_s']:,.0f}", ""),
        ]
        if "tokens" in cost:
            origin = "full batches, as configured" if cost["tokens_are_configured"] else "as given"
            rows += [
                (tokens, f"{cost['tokens']:,}", origin),
                ("FLOPs", f"{cost['flops']:.3e}", f"{rule}: {cost['rule_of_thumb_flops']:.3e}"),
                ("time", duration(cost["seconds"]), ""),
            ]
        for name, n_bytes in needed.items():
            amount = counted((self._batch if name == "training" else self.work).batch_size, "sentences")
            rows.append((f"{name}, {amount}", binary(n_bytes), _fits(n_bytes, device)))
        columns = (Column("Quantity"), Column("Value", "right"), Column("Note"))
        title = f"{self.subject.name}: training on one {device.name}"
        return Table(title, columns, tuple(rows), notes=tuple(self._training_notes(cost)))

    def _training_notes(self, cost: dict[str, Any]) -> Iterator[str]:
        options = self.subject.config.training
        if options.freeze:
            yield "Speed is at least, and time at most that: what training.freeze spares is not taken off."
        if "tokens" not in cost:
            yield "How many tokens there are is not configured: --tokens N adds the time."
        elif cost["tokens_are_configured"]:
            for name in ("stop_loss", "patience"):
                if getattr(options, name) is not None:
                    yield f"At most: training.{name} may end it earlier."

    def _amount(self, work: Work, *, beams: bool = True) -> str:
        """`1 sentence of 25 source and 25 target tokens, 5 beams`."""
        sides = self.count.model.sides
        if len(sides) == 2:
            lengths = f"{work.source_length:,} source and {counted(work.target_length, 'target tokens')}"
        else:
            lengths = counted(work.source_length + work.target_length, "tokens")
        searched = f", {work.beam_size:,} {work.path}s" if beams and work.beam_size > 1 else ""
        return f"{counted(work.batch_size, 'sentences')} of {lengths}{searched}"


UNITS = ((1e-6, "µs"), (1e-3, "ms"), (1, "s"), (60, "minute"), (3600, "hour"), (86400, "day"), (86400 * 365.25, "year"))


def duration(seconds: float) -> str:
    """`4.02 ms`, `3.1 hours`: in the first unit in which three digits come to less than one of the next."""
    for (size, unit), (larger, _) in pairwise(UNITS):
        number = f"{seconds / size:.3g}"
        if seconds < larger and float(number) < round(larger / size, 3):
            return _of(number, unit)
        seconds = max(seconds, larger)
    size, unit = UNITS[-1]
    return _of(f"{seconds / size:.3g}" if seconds < 999.5 * size else f"{seconds / size:,.0f}", unit)


def _of(number: str, unit: str) -> str:
    return f"{number} {unit}{'s' * (len(unit) > 2 and number != '1')}"


def _fits(n_bytes: int, device: Hardware) -> str:
    verb = "fits into" if n_bytes <= device.memory_bytes else "does not fit into"
    return f"{verb} {device.memory_bytes / 1e9:,.0f} GB"


def _unit(largest: int) -> tuple[str, int]:
    """The unit in which a number has three to six digits before the point."""
    power = max(0, min(6, (len(str(largest)) - 4) // 3))
    return f"{['', 'k', 'M', 'G', 'T', 'P', 'E'][power]}FLOP", 1000**power


def _in(size: int, flops: int) -> str:
    return f"{flops / size:,.2f}" if flops else "0"


def _pass_json(terms: list[Term], name: str) -> dict[str, Any]:
    def numbers(macs: int) -> dict[str, int]:
        if name != "training":
            return {"macs": macs, "flops": 2 * macs}
        return {"macs": macs, "forward_flops": 2 * macs, "backward_flops": 4 * macs}

    total = sum(term.macs.value for term in terms)
    parts = [{"part": t.part, "product": t.macs.text, **numbers(t.macs.value)} for t in terms]
    together = {"flops": 6 * total} if name == "training" else {}
    return {**numbers(total), **together, "parts": parts}


def _bound_json(bound: Bound) -> dict[str, Any]:
    return {
        "flops": bound.flops,
        "read_bytes": bound.bytes,
        "flops_per_byte": bound.intensity,
        "seconds": bound.seconds,
        "bound_by": bound.by,
    }
